"""Common parts of commands that read files: a progress bar, and errors that name the place and exit with status 2."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ingero_analyze.table_errors import TableError
from ingero_kit.settings import SettingsError


@contextlib.contextmanager
def progress_over_files(
    command: str, files: Sequence[str], doing: str, quiet: bool
) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with every number of bytes read. Exits the process when a file cannot be used."""
    console = Console(stderr=True, highlight=False)
    sizes = [Path(file).stat().st_size for file in files if file != "-" and Path(file).is_file()]
    total = float(sum(sizes)) if len(sizes) == len(files) else None
    bar = Progress(
        TextColumn(doing), BarColumn(), TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True,
        disable=quiet or not console.is_terminal,
    )  # fmt: skip
    try:
        with bar:
            task = bar.add_task(doing, total=total)
            yield lambda size: bar.advance(task, size)
    except (TableError, SettingsError) as error:
        _end(command, str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _end(command, f"{place}{error.strerror or error}")


def _end(command: str, reason: str) -> None:
    click.echo(f"ingero-fleet {command}: {reason}", err=True)
    sys.exit(2)
