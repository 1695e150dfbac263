"""The Arrow columns of every table, and the conversion of rows to record batches."""

from typing import Any, Final

import pyarrow as pa

from ingero_contract.signals import SIGNALS

NANOS: Final = pa.timestamp("ns")
_TEXT, _REAL, _INT = pa.string(), pa.float64(), pa.int32()
_HEAD: Final = [
    ("event_id", pa.uuid()), ("timestamp", NANOS), ("cluster_id", _TEXT), ("node_id", _TEXT),
]  # fmt: skip

SCHEMAS: Final[dict[str, pa.Schema]] = {
    "events": pa.schema(
        [
            ("event_id", pa.uuid()), ("timestamp", NANOS), ("received", NANOS), ("signal", _TEXT),
            ("cluster_id", _TEXT), ("node_id", _TEXT), ("metric_name", _TEXT), ("value_double", _REAL),
            ("rank", _INT), ("nranks", _INT), ("causal_chain_id", _TEXT), ("message", _TEXT), ("attributes", _TEXT),
        ]
    ),
    "node_metrics": pa.schema(
        [
            *_HEAD, ("rank", _INT), ("world_size", _INT), ("state", _TEXT), ("workload_type", _TEXT),
            ("job_id", _TEXT), ("gpu_model", _TEXT), ("provider", _TEXT), ("health_score", _REAL),
            *((row.column, _REAL) for row in SIGNALS), ("throughput_rate", _REAL),
        ]
    ),
    "collectives": pa.schema(
        [
            *_HEAD, ("measure", _TEXT), ("operation", _TEXT), ("communicator", _TEXT), ("rank", _INT),
            ("nranks", _INT), ("sequence", pa.int64()), ("value_double", _REAL),
        ]
    ),
    "verdicts": pa.schema(
        [
            *_HEAD, ("rank", _INT), ("source", _TEXT), ("state", _TEXT), ("kind", _TEXT), ("since", _TEXT),
            ("severity", _REAL), ("cohort", _TEXT), ("evidence", _TEXT), ("digest", _TEXT), ("communicator", _TEXT),
            ("pod", _TEXT),
        ]
    ),
    "causal_chains": pa.schema(
        [
            *_HEAD, ("causal_chain_id", _TEXT), ("severity", _TEXT), ("root_cause", _TEXT), ("summary", _TEXT),
            ("attributes", _TEXT),
        ]
    ),
}  # fmt: skip
"""Tables and their columns, in the order of the schema files."""


def uuids(blob: bytes) -> pa.Array:
    """An array of UUIDs from their bytes, joined."""
    storage = pa.Array.from_buffers(pa.binary(16), len(blob) // 16, [None, pa.py_buffer(blob)])
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def batch(table: str, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of a table, event id as 16 bytes first, as a record batch."""
    schema = SCHEMAS[table]
    columns = list(zip(*rows, strict=True))
    arrays = [uuids(b"".join(columns[0]))]
    arrays += [pa.array(column, field.type) for column, field in zip(columns[1:], list(schema)[1:], strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
