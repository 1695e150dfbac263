"""Loads settings with one precedence for every component: flag, then environment, then YAML file, then default.

A component describes its settings as one pydantic model (derive from `Settings`: frozen, unknown keys refused, a
docstring under each field is its documentation). `load` merges the three sources; its errors name the source and the
path. Environment variables are PREFIX + path in capitals, joined by two underscores:
`INGERO_FLEET_PROCESSORS__INGERO__PUSH_INTERVAL=5s`; their values are read as YAML scalars.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AllowInfNan, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from ingero_kit.addresses import without_user
from ingero_kit.files import not_utf8

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class SettingsError(Exception):
    """Settings that cannot be used; the text names the source, the path and the fix."""


class Settings(BaseModel):
    """Base of every settings model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def parse_duration(value: object) -> object:
    """Parse `5s`, `1m30s` or `250ms`; anything else is returned unchanged."""
    if isinstance(value, str):
        text = value.strip()
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return value


def _duration(value: object) -> object:
    seconds = parse_duration(value)
    try:
        return float(seconds) if isinstance(seconds, str) else seconds
    except ValueError:
        raise ValueError("a duration such as 5s, 1m30s or 250ms was expected") from None


def format_duration(seconds: float) -> str:
    """Format seconds as a user would write them; `parse_duration` returns the same value."""
    exact = Decimal(repr(seconds))
    number = f"{exact * 1000 if seconds < 1 else exact:f}"
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return number + ("ms" if seconds < 1 else "s")


Duration = Annotated[
    float, BeforeValidator(_duration), AllowInfNan(False), PlainSerializer(format_duration, when_used="json")
]
"""Seconds; written as `5s`, `1m30s`, `250ms` or a number."""

Model = TypeVar("Model", bound=BaseModel)


def load(
    model: type[Model],
    *,
    file: Path | None = None,
    prefix: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
    reserved: frozenset[str] = frozenset(),
    section: str = "",
    other_sections: frozenset[str] = frozenset(),
) -> Model:
    """Merge file, environment and flags into a checked model.

    `flags` maps dotted paths to values; `None` means not given. `assignments` are `PATH=VALUE`, the value a YAML
    scalar, as for `--set`. `reserved` names variables with the prefix that are not settings, such as the one that
    names the file itself. In a file that several commands share, `section` is the part for this command, and
    `other_sections` are parts for others.

    Raises `SettingsError` for an unreadable file, an unknown key or a value that does not fit.
    """
    merged = _own_part(file, section, other_sections) if file else {}
    origin: dict[str, str] = {}
    if prefix:
        for name, path, value in _from_environment(
            os.environ if environment is None else environment, prefix, reserved
        ):
            _put(merged, path, value, name)
            origin[".".join(path)] = f"environment variable {name}"
    for dotted, value in (flags or {}).items():
        if value is not None:
            _put(merged, dotted.split("."), value, dotted)
            origin[dotted] = f"flag --{dotted.split('.')[-1].replace('_', '-')}"
    for item in assignments:
        dotted, value = _assignment(item)
        _put(merged, dotted.split("."), value, f"--set {dotted}")
        origin[dotted] = "--set"
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        ways = {path: f"--{path.split('.')[-1].replace('_', '-')}" for path in flags or {}}
        raise SettingsError(explain(error, str(file) if file else "settings", origin, ways, model)) from None


def _own_part(file: Path, section: str, other_sections: frozenset[str]) -> dict[str, Any]:
    tree = read_yaml(file)
    if not section:
        return {key: value for key, value in tree.items() if key not in other_sections}
    part = tree.get(section)
    if not isinstance(part, dict | None):
        raise SettingsError(f"{file}: {section}: a mapping was expected")
    return dict(part or {})


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML mapping; an empty file is an empty mapping."""
    from ingero_kit.yaml_documents import YamlError, load_yaml  # 1 MB, which nobody needs who sets flags only

    try:
        value = load_yaml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}") from None
    except YamlError as error:
        raise SettingsError(f"{file}: {error}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: {not_utf8(error)}") from None
    except ValueError as error:
        raise SettingsError(f"{file}: is not text: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"{file}: a mapping was expected at the top, not a {type(value).__name__}")
    return value


def _from_environment(
    environment: Mapping[str, str], prefix: str, reserved: frozenset[str]
) -> Iterator[tuple[str, list[str], Any]]:
    for name in sorted(environment):
        if name.startswith(prefix) and name not in reserved:
            yield name, name[len(prefix) :].lower().split("__"), _value(environment[name], name)


def _assignment(item: str) -> tuple[str, Any]:
    path, equals, value = item.partition("=")
    if not equals or not path.strip():
        raise SettingsError(f"--set {item}: PATH=VALUE was expected")
    return path.strip(), _value(value, f"--set {path.strip()}")


def _value(text: str, name: str) -> Any:
    """Parse a value as YAML; text that is not YAML, such as `[::1]:4317`, stays text."""
    from ingero_kit.yaml_documents import DuplicateKeyError, YamlError, load_yaml

    try:
        return load_yaml(text)
    except DuplicateKeyError as error:
        raise SettingsError(f"{name}: {error}") from None
    except YamlError:
        return text


def _put(tree: dict[str, Any], path: list[str], value: Any, name: str) -> None:
    for key in path[:-1]:
        below = tree.get(key)
        if below is None:
            below = tree[key] = {}
        if not isinstance(below, dict):
            raise SettingsError(f"{name}: {key} is a value, not a group of settings")
        tree = below
    tree[path[-1]] = value


def explain(
    error: ValidationError,
    source: str,
    origin: Mapping[str, str] = MappingProxyType({}),
    ways: Mapping[str, str] = MappingProxyType({}),
    model: type[BaseModel] | None = None,
) -> str:
    """What is wrong, one line for each problem, with its path; `origin` names other sources than `source` by path.

    `ways`: flags by the path of what they set; `model`: whose names are suggested for misspelt ones.
    """
    lines = []
    for problem in error.errors(include_url=False):
        path = ".".join(str(part) for part in problem["loc"])
        place = next((text for key, text in origin.items() if f"{path}.".startswith(f"{key}.")), source)
        if problem["type"] == "extra_forbidden":
            # What lies below an unknown group is not looked at, so the group may come from a longer path.
            below = [key for key in origin if key.startswith(f"{path}.")]
            said = f"no such setting{_suggestion(model, problem['loc'])}"
            lines += [f"{origin[key]}: {key}: {said}" for key in below] or [f"{place}: {path}: {said}"]
        elif problem["type"] == "missing":
            lines.append(f"{place}: {path}: is required" + (f" ({ways[path]})" if path in ways else ""))
        else:
            group = problem["type"] == "model_type"
            message = "a group of settings was expected" if group else problem["msg"].removeprefix("Value error, ")
            # Without a path several settings together are wrong, and the input is all of them.
            given = without_user(repr(problem["input"]))
            lines.append(f"{place}: {path}: {message} (got {given:.80})" if path else message)
    return "\n".join(lines)


def _suggestion(model: type[BaseModel] | None, path: Sequence[str | int]) -> str:
    """The name that a misspelt one at this path resembles, as a question; empty if it resembles none."""
    from difflib import get_close_matches  # only for a mistake

    *groups, name = path
    for group in groups:
        field = model.model_fields.get(str(group)) if model else None
        parts = (field.annotation, *get_args(field.annotation)) if field else ()
        model = next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)
    close = get_close_matches(str(name), model.model_fields, 1, 0.75) if model else []
    return f"; did you mean {close[0]}?" if close else ""
