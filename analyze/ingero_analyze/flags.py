"""Flags that several commands have: output as JSON or for people, a plot, columns, and files or folders of them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ingero_analyze.figures import PlotError, check_plot
from ingero_analyze.folders import with_tables_of_folders
from ingero_analyze.table_errors import TableError

Command = TypeVar("Command", bound=Callable[..., Any])

_OLD: Final = "ingero.format"


def json_flag(declaration: str, text: str) -> Callable[[Command], Command]:
    """The flag `--json`, passed on as `as_json` (`None` if it is not given), and its older name `--format`."""

    def remember(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value:
            context.meta[_OLD] = value == "json"

    def chosen(context: click.Context, _: click.Parameter, value: bool | None) -> bool | None:
        return context.meta.get(_OLD) if value is None else value

    def decorate(command: Command) -> Command:
        command = click.option(declaration, "as_json", is_flag=True, default=None, callback=chosen, help=text)(
            command
        )
        kinds = click.Choice(["json", "table"])
        return click.option(
            "--format", type=kinds, hidden=True, is_eager=True, expose_value=False, callback=remember
        )(command)

    return decorate


def chosen_columns(
    given: Iterable[str], roles: Sequence[str], *, once: Collection[str] = (), empty: bool = False
) -> list[tuple[str, str]]:
    """Roles and columns of the flag `--column ROLE=COLUMN`; raises `click.UsageError`.

    `once`: roles that may be given once; `empty`: whether the column may be left out.
    """
    found: list[tuple[str, str]] = []
    for one in given:
        role, equal, name = one.partition("=")
        again = role in once and any(role == other for other, _ in found)
        if not equal or role not in roles or again or not (name or empty):
            raise click.UsageError(f"--column {one}: ROLE=COLUMN is needed, ROLE one of {', '.join(roles)}")
        found.append((role, name))
    return found


def with_tables(
    _: click.Context,
    parameter: click.Parameter,
    paths: tuple[str, ...],
    is_read: Callable[[str], bool] = lambda begin: False,
    begin: int = 0,
) -> tuple[str, ...]:
    """The callback of an argument of files: those given; for folders the tables and logs in them.

    `is_read`: whether a log is read, by so many bytes at its `begin`.
    """
    try:
        return with_tables_of_folders(paths, is_read, begin)
    except TableError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def plot_flag(command: Command) -> Command:
    """The flag `--plot`, passed on as a path that can be written in a format that is known, or `None`."""

    def usable(_: click.Context, __: click.Parameter, file: Path | None) -> Path | None:
        try:
            if file:
                check_plot(file)
        except PlotError as error:
            raise click.BadParameter(str(error)) from None
        return file

    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("--plot", type=path, callback=usable, help="Write a picture, such as a PNG.")(command)
