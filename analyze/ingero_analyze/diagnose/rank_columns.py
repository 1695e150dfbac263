"""Tables with columns for the operations of each rank, such as `rank3_forward_ms`. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from ingero_analyze.audit.columns import words_of
from ingero_analyze.diagnose.columns import WHOLE_STEPS
from ingero_analyze.diagnose.step_times import is_of_whole_steps, operation_columns
from ingero_analyze.member_columns import ColumnsOfMembers, is_whole

FEWEST: Final = 2
"""Ranks from which columns are those of ranks."""

_FIRST: Final = re.compile(r"rank[ _-]?(?P<rank>\d+)[\W_]+(?P<held>.+)", re.IGNORECASE)
_INDEX: Final = re.compile(r"(?P<held>.+?)\[(?P<rank>\d+)\]")
_LAST: Final = re.compile(r"(?P<held>.+?)[\W_]+rank[ _-]?(?P<rank>\d+)", re.IGNORECASE)


def columns_of_ranks(names: Sequence[str]) -> ColumnsOfMembers | None:
    """Such a table; `None` for any other, and where a column says the rank. `ValueError` for times of whole steps."""
    if any(words_of(name) == "rank" for name in names):
        return None
    for pattern in (_FIRST, _LAST, _INDEX):
        found = {name: match for name in names if (match := pattern.fullmatch(name))}
        cells = {name: (match["rank"], match["held"]) for name, match in found.items()}
        held = list(dict.fromkeys(held for _, held in cells.values()))
        if len(cells) >= FEWEST and is_whole(cells) and all(map(is_of_whole_steps, held)):
            raise ValueError(WHOLE_STEPS)
        if len(cells) >= FEWEST * max(1, len(held)) and is_whole(cells) and operation_columns(held):
            return ColumnsOfMembers("rank", names, cells)
    return None
