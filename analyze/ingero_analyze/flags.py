"""Flags that several commands have: output as JSON or for people, and a plot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ingero_analyze.figures import PlotError, check_plot

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
