"""Shows text of files on a terminal, or where output is piped."""

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape

PIPED_WIDTH: Final = 10_000
"""Columns of output that is no terminal: no line is folded and no cell is cut there."""


def output() -> Console:
    """Standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def plain(text: str) -> str:
    """Text for a rich console without markup, and without control characters, which a terminal would carry out."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def listed(shown: Sequence[str], count: int) -> str:
    """The first of so many names, and how many more there are."""
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
