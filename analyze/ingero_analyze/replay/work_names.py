"""Names of columns that hold how much a row did: tokens, samples, lengths, batches. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from ingero_analyze.audit.columns import words_of

MOST_COLUMNS: Final = 8
"""Columns that are tried, at most."""

_KINDS: Final = tuple(
    map(
        re.compile,
        (
            r"work(?: units| size)?",
            r"(?:(?:n|num|number of|total|batch|step|prompt|input|output|generated) )?tokens"
            r"(?: (?:per|in|this) (?:step|batch|iter|iteration))?|(?:(?:prompt|input|output) )?token count",
            r"(?:(?:n|num|number of|total|batch|step) )?(?:samples|sequences)"
            r"(?: (?:per|in|this) (?:step|batch|iter|iteration))?",
            r"(?:(?:avg|average|mean|max|total|padded) )?(?:seq|sequence|context|input|prompt|output) ?len(?:gth)?",
            r"(?:(?:global|local|mini|micro) )?batch ?size|bs",
        ),
    )
)
"""What says most about work comes first."""


def columns_of_work(names: Sequence[str]) -> list[str]:
    """Those of some columns that may hold work, that which says most first; of one within an object, by its last
    part."""
    found = [(kind, name) for name in names if (kind := _kind(name)) is not None]
    return [name for _, name in sorted(found, key=lambda one: one[0])][:MOST_COLUMNS]


def _kind(name: str) -> int | None:
    words = words_of(re.split(r"[/.](?=[a-zA-Z])", name)[-1])
    return next((number for number, kind in enumerate(_KINDS) if kind.fullmatch(words)), None)
