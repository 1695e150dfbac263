"""The Arrow columns of every table, and the conversion of rows to record batches."""

from __future__ import annotations

from functools import cache
from typing import Any

from ingero_contract.signals import SIGNALS
from ingero_echo.arrays import pa


@cache
def schema(table: str) -> pa.Schema:
    """The columns of a table, in the order of the schema files."""
    nanos, text, real, whole = pa.timestamp("ns"), pa.string(), pa.float64(), pa.int32()
    head = [("event_id", pa.uuid()), ("timestamp", nanos), ("cluster_id", text), ("node_id", text)]
    tables: dict[str, list[tuple[str, pa.DataType]]] = {
        "events": [
            ("event_id", pa.uuid()), ("timestamp", nanos), ("received", nanos), ("signal", text),
            ("cluster_id", text), ("node_id", text), ("metric_name", text), ("value_double", real),
            ("rank", whole), ("nranks", whole), ("causal_chain_id", text), ("message", text), ("attributes", text),
        ],
        "node_metrics": [
            *head, ("rank", whole), ("world_size", whole), ("state", text), ("workload_type", text),
            ("job_id", text), ("gpu_model", text), ("provider", text), ("health_score", real),
            *((row.column, real) for row in SIGNALS), ("throughput_rate", real),
        ],
        "collectives": [
            *head, ("measure", text), ("operation", text), ("communicator", text), ("rank", whole),
            ("nranks", whole), ("sequence", pa.int64()), ("value_double", real),
        ],
        "verdicts": [
            *head, ("rank", whole), ("source", text), ("state", text), ("kind", text), ("since", text),
            ("severity", real), ("cohort", text), ("evidence", text), ("digest", text), ("communicator", text),
            ("pod", text),
        ],
        "causal_chains": [
            *head, ("causal_chain_id", text), ("severity", text), ("root_cause", text), ("summary", text),
            ("attributes", text),
        ],
    }  # fmt: skip
    return pa.schema(tables[table])


def uuids(blob: bytes) -> pa.Array:
    """An array of UUIDs from their bytes, joined."""
    storage = pa.Array.from_buffers(pa.binary(16), len(blob) // 16, [None, pa.py_buffer(blob)])
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def batch(table: str, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of a table, event id as 16 bytes first, as a record batch."""
    ids, *columns = zip(*rows, strict=True)
    fields = list(schema(table))[1:]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays([uuids(b"".join(ids)), *arrays], schema=schema(table))
