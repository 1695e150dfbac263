"""Shows text of files on a terminal, or where output is piped."""

import sys
from collections.abc import Collection, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPED_WIDTH: Final = 10_000
"""Columns of output that is no terminal: no line is folded and no cell is cut there."""


def output() -> Console:
    """Standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


NARROW: Final = 72
"""Columns of a terminal below which a table of eight columns would break numbers and times into pieces."""


def print_rows(
    console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
) -> None:
    """A table, or in a narrow terminal a line for each value of a row. `right`: titles of columns of numbers."""
    if console.width < NARROW:
        for row in rows:
            console.print(row[0], style="bold")
            for title, cell in zip(titles[1:], row[1:], strict=True):
                console.print(f"  {title}: {cell}")
        return
    table = Table()
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def plain(text: str) -> str:
    """Text for a rich console without markup, and without control characters, which a terminal would carry out."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def listed(shown: Sequence[str], count: int) -> str:
    """The first of so many names, and how many more there are."""
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
