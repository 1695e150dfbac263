"""What every command needs: lazy groups, flags made from a settings model, common flags, and exits with a reason.

A settings model gives one flag for each setting, documented by the setting's docstring.
"""

import errno
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ingero_kit.extras import pip_command
from ingero_kit.settings import SettingsError, format_duration, parse_duration

Command = TypeVar("Command", bound=Callable[..., Any])

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
"""Context settings of every command."""

INTERRUPTED: Final = 128 + 2
"""Exit status after Ctrl-C, as shells give it: 128 and the number of SIGINT."""

_OUTPUT_LOST: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN and infinity, which pass every comparison or none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return found


class SecondsRange(FiniteRange):
    """A range of seconds, written as a number or as settings have them: `90`, `1m30s`."""

    name = "duration, such as 90, 90s or 1m30s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The seconds."""
        return super().convert(parse_duration(value), param, ctx)


class InstalledCommand(click.Command):
    """A command that says how to install the libraries of its component where they are missing, and when its output
    is lost."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command. Ends with status 1 where standard output takes no more, as on a full disk. What is
        written to a closed stream is lost."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _OUTPUT_LOST or error.filename is not None:
                raise
            # What is buffered would be written once more at the exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno != errno.EPIPE:
                click.echo(f"{Path(sys.argv[0]).name}: standard output: {error.strerror}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ends with status 1 where a library is missing, and says what installs it, and with 130 on
        Ctrl-C: 1 would say that the command found what it searches for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("ingero_"):
                raise
            component = _component(self.callback.__module__ if self.callback else "")
            raise click.ClickException(_missing(error, component)) from None


class CommandGroup(InstalledCommand, click.Group):
    """A group whose help shows the whole first sentence of every command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(1000)) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyGroup(CommandGroup):
    """A group whose `lazy` maps a command to `module:attribute`; each command loads only its own libraries.

    A command whose libraries are missing is listed all the same, and says how to install them.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order."""
        return sorted([*super().list_commands(ctx), *self._lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or one that ends with exit status 1 and the way to install it."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name].partition(":")
        try:
            command: click.Command = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            return _failing(cmd_name, f"{ctx.command_path} {cmd_name}: {_missing(error, _component(module))}", error)
        return command


def _component(module: str) -> str:
    return module.partition(".")[0].removeprefix("ingero_")


def _missing(error: ModuleNotFoundError, component: str) -> str:
    return f"not installed (no module {error.name}): {pip_command(component)}"


def _failing(name: str, text: str, error: ModuleNotFoundError) -> click.Command:
    def callback() -> NoReturn:
        raise click.ClickException(text)

    return click.Command(
        name,
        callback=callback,
        short_help=f"not installed (no module {error.name})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )


def config_flag(variable: str) -> Callable[[Command], Command]:
    """The flag `--config` of a command, passed to it as `file`; `variable` can name the file too."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("--config", "file", type=path, envvar=variable, help="YAML file.")


def set_flag(example: str) -> Callable[[Command], Command]:
    """The flag `--set` of a command, passed to it as `settings`."""
    text = f"Set one value, e.g. {example}."
    return click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help=text)


def ports_file_flag(text: str = "Write the ports taken, as JSON, when ready.") -> Callable[[Command], Command]:
    """The flag `--ports-file` of a command."""
    return click.option("--ports-file", type=click.Path(path_type=Path), help=text)


@contextmanager
def exit_with_reason(program: str, *errors: type[Exception]) -> Iterator[None]:
    """End the program with the reason of an error: status 2 for wrong settings and the files that they name, 1 for
    one of these errors."""
    try:
        yield
    except Exception as error:
        from ingero_http.tls import CertificateError  # only now: most commands open no TLS

        wrong = isinstance(error, (SettingsError, CertificateError))
        if not wrong and not isinstance(error, errors):
            raise
        click.echo(f"{program}: {error}", err=True)
        sys.exit(2 if wrong else 1)


def default_text(field: FieldInfo) -> str:
    """The default as a user would write it; empty if there is none."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if "default_in_words" in extra:
        return str(extra["default_in_words"])
    value: Any = field.default
    if field.is_required() or field.default_factory is not None or value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and any("_duration" in repr(item) for item in field.metadata):
        return format_duration(value)
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def settings_flags(model: type[BaseModel]) -> Callable[[Command], Command]:
    """A decorator that gives a command one flag for each setting; a flag that is not given is `None`.

    A setting's flag is its name with dashes, or `flag` of its `json_schema_extra`; an `old_flag` works too. A tuple's
    flag can be repeated.
    """

    def decorate(command: Command) -> Command:
        for name, field in reversed(model.model_fields.items()):
            command = _option(name, field)(command)
        return command

    return decorate


class RenamedOption(click.Option):
    """An option that also has an older name, which works and is not shown."""

    def __init__(self, *args: Any, old: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._old = old

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser know both names."""
        shown, self.opts = self.opts, [*self.opts, self._old]
        super().add_to_parser(parser, ctx)
        self.opts = shown


def _option(name: str, field: FieldInfo) -> Callable[[Command], Command]:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    flag = str(extra.get("flag", name.replace("_", "-")))
    text = " ".join((field.description or "").replace("`", "").split())
    default = default_text(field)
    renamed: dict[str, Any] = {"cls": RenamedOption, "old": f"--{extra['old_flag']}"} if "old_flag" in extra else {}
    if field.annotation is bool:
        return click.option(f"--{flag}/--no-{flag}", name, default=None, help=text)
    help_text = f"{text}  [default: {default}]" if default else text
    if get_origin(field.annotation) is tuple:
        return click.option(
            f"--{flag}", name, multiple=True, callback=lambda *found: found[2] or None, help=help_text, **renamed
        )
    return click.option(f"--{flag}", name, default=None, help=help_text, **renamed)
