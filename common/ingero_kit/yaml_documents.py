"""Reads YAML with libyaml, and refuses what it does not: a key twice in a mapping, and very deep nesting. Pure."""

import re
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 64
"""Deepest nesting of lists and mappings. Without a limit libyaml ends the process."""

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Final[Any] = yaml.SafeLoader("")
_SOURCE: Final = re.compile(r' in "<(?:unicode|byte) string>", ')
_MERGE: Final = "tag:yaml.org,2002:merge"


class YamlError(ValueError):
    """A text cannot be used as YAML; the error says why, and in which line where that is known."""


class DuplicateKeyError(YamlError):
    """A mapping has a key twice, so that one of the values would be ignored."""


def load_yaml(content: str | bytes) -> Any:
    """The value of one document, `None` for an empty one. Raises `YamlError`."""
    try:
        _check(content)
        return yaml.load(content, _LOADER)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _explained(error) from None


def load_yaml_documents(content: str | bytes) -> list[Any]:
    """The values of all documents. Raises `YamlError`."""
    try:
        _check(content)
        return list(yaml.load_all(content, _LOADER))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _explained(error) from None


def _explained(error: Exception) -> YamlError:
    if isinstance(error, YamlError):
        return error
    text = _SOURCE.sub(" in ", " ".join(str(error).split()))
    hint = " (if it is a tab: YAML is indented by spaces)" if "cannot start any token" in text else ""
    return YamlError(f"is not YAML: {text or type(error).__name__}{hint}")


class _Mapping:
    """An open mapping: its keys so far, and whether a key comes next."""

    __slots__ = ("key_next", "keys")

    def __init__(self) -> None:
        self.keys: dict[str, yaml.ScalarEvent] = {}
        self.key_next = True

    def node(self, event: yaml.NodeEvent) -> None:
        """A key or a value begins."""
        if self.key_next and isinstance(event, yaml.ScalarEvent):
            first = self.keys.setdefault(event.value, event)
            if first is not event and (tag := _tag(event)) == _tag(first) and tag != _MERGE:
                raise DuplicateKeyError(
                    f"line {_line(event)}: the key {event.value!r:.80} is in the same mapping twice, "
                    f"first in line {_line(first)}"
                )
        self.key_next = not self.key_next


def _check(content: str | bytes) -> None:
    """Raise `YamlError` for a key that is twice in a mapping and for nesting that is too deep."""
    inside: list[_Mapping | None] = []
    for event in yaml.parse(content, _LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            inside.pop()
        elif isinstance(event, yaml.NodeEvent):
            if inside and (mapping := inside[-1]):
                mapping.node(event)
            if isinstance(event, yaml.CollectionStartEvent):
                inside.append(_Mapping() if isinstance(event, yaml.MappingStartEvent) else None)
                if len(inside) > MAX_DEPTH:
                    raise YamlError(
                        f"line {_line(event)}: more than {MAX_DEPTH} lists and mappings inside of each other"
                    )


def _tag(event: yaml.ScalarEvent) -> str:
    """The type of a scalar: the text "1" is another key than the number 1."""
    return event.tag or str(_RESOLVER.resolve(yaml.ScalarNode, event.value, event.implicit))


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0
