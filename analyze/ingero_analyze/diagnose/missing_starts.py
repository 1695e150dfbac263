"""Starts of operations in tables that have only their steps and how long they lasted. Pure."""

from dataclasses import replace
from typing import Final

import numpy as np

from ingero_analyze.table_batch import TableBatch
from ingero_detect.grouped import Floats, Ints

BEGIN: Final = "begin within the step"
"""Name of the column of starts since the begin of the step."""


def with_starts(
    batch: TableBatch, rank: Ints, step: Ints, duration: Floats, ended: dict[tuple[int, int], float]
) -> TableBatch:
    """The batch with `BEGIN`: the operations of a rank in a step follow one another, in the order of the rows.

    `ended`: when each rank ended the rows of a step that are there already, by both; it is brought up to date.
    """
    import pyarrow as pa

    lasting = np.where(np.isfinite(duration) & (duration > 0), duration, 0.0)
    order = np.lexsort((np.arange(batch.rows), step, rank))
    own, of_step, length = rank[order], step[order], lasting[order]
    first = np.flatnonzero((np.diff(own, prepend=-2) != 0) | (np.diff(of_step, prepend=-2) != 0))
    ends = np.cumsum(length)
    part = np.repeat(np.arange(len(first)), np.diff(np.append(first, batch.rows)))
    keys = list(zip(own[first].tolist(), of_step[first].tolist(), strict=True))
    before = np.array([ended.get(key, 0.0) for key in keys])
    within = ends - (ends[first] - length[first])[part] + before[part]
    last = np.append(first[1:], batch.rows) - 1
    ended.update(zip(keys, within[last].tolist(), strict=True))
    begins = np.empty(batch.rows)
    begins[order] = within - length
    return replace(batch, columns={**batch.columns, BEGIN: pa.array(begins)})
