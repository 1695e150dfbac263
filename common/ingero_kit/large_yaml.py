"""Reads large YAML documents with libyaml, which is fast, and which alone would end the process at deep nesting."""

from typing import Any, Final

import yaml

MAX_DEPTH: Final = 64
"""Deepest nesting of lists and mappings."""

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_large_yaml(content: bytes) -> Any:
    """The value of a document. Raises `ValueError` when it is none, or is nested too deeply."""
    try:
        depth = 0
        for event in yaml.parse(content, _LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise ValueError(f"line {line}: more than {MAX_DEPTH} lists and mappings inside of each other")
        return yaml.load(content, _LOADER)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
