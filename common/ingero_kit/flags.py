"""Makes command-line flags from a settings model: one per setting, documented by the setting's docstring."""

from collections.abc import Callable
from typing import Any, TypeVar, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ingero_kit.settings import format_duration

Command = TypeVar("Command", bound=Callable[..., Any])


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

    A setting's flag is its name with dashes, or `flag` of its `json_schema_extra`. A tuple's flag can be repeated.
    """

    def decorate(command: Command) -> Command:
        for name, field in reversed(model.model_fields.items()):
            command = _option(name, field)(command)
        return command

    return decorate


def _option(name: str, field: FieldInfo) -> Callable[[Command], Command]:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    flag = str(extra.get("flag", name.replace("_", "-")))
    text = " ".join((field.description or "").replace("`", "").split())
    default = default_text(field)
    if field.annotation is bool:
        return click.option(f"--{flag}/--no-{flag}", name, default=None, help=text)
    help_text = f"{text}  [default: {default}]" if default else text
    if get_origin(field.annotation) is tuple:
        return click.option(
            f"--{flag}", name, multiple=True, callback=lambda *found: found[2] or None, help=help_text
        )
    return click.option(f"--{flag}", name, default=None, help=help_text)
