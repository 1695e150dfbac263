"""Times whose units are in the cells of a table, such as `12.3 ms`. Pure."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ingero_analyze.audit.columns import SECONDS
from ingero_analyze.table_batch import TableBatch, is_text

_TIMED: Final = re.compile(rf"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*({'|'.join(SECONDS)}|µs)\s*")


def in_seconds(batch: TableBatch, names: Sequence[str]) -> tuple[TableBatch, list[str]]:
    """The batch with numbers of seconds in those of these columns whose first cells are times with units, and these
    columns. A cell that is none stays as it is."""
    import pyarrow as pa

    found: list[str] = []
    columns = dict(batch.columns)
    for name in names:
        if is_text(columns[name]) and batch.rows and _TIMED.fullmatch(str(columns[name][0])):
            encoded = batch.texts(name).dictionary_encode()
            texts = pa.array([_seconds(text) for text in encoded.dictionary.to_pylist()], pa.string())
            columns[name] = texts.take(encoded.indices)
            found.append(name)
    return replace(batch, columns=columns), found


def _seconds(text: str) -> str:
    found = _TIMED.fullmatch(text)
    return repr(float(found[1]) * SECONDS[found[2].replace("µ", "u")]) if found else text
