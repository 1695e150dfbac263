"""Which logs hold results: lines with the value of a GPU or node. Pure."""

import io
from itertools import islice
from typing import Final

from ingero_analyze import log_lines
from ingero_analyze.audit.columns import ROLES, is_value, words_of
from ingero_analyze.json_tables import names_of

LOOKED_AT: Final = 256
"""Rows by which such a log is known."""


def are_results(text: str) -> bool:
    """Whether the begin of a text is a log with a value and the GPU or node that it is of."""
    if not log_lines.are_logs(text):
        return False
    rows = log_lines.rows_of(b"", io.BytesIO(text.encode()), lambda failure, line: None)
    names = names_of(row for _, row in islice(rows, LOOKED_AT))
    return any(map(is_value, names)) and not {*ROLES["gpu"], *ROLES["node"]}.isdisjoint(map(words_of, names))
