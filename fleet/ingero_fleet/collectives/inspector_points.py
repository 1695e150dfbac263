"""Reads the attributes of NCCL Inspector's points, as its OTLP export has them in the verbose form. Pure.

A collective's kernel runs on the GPU until the last rank has arrived, so the late rank's kernel is the shortest.
Points name the node and the GPU, and no rank. The default form has averages over the collectives of an export. They
do not show which ranks waited for each other, so they prove nothing about any rank.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from ingero_contract import attributes
from ingero_kit.health_report import check_name

UNMATCHED: Final = "averages of NCCL Inspector name no collective (set NCCL_INSPECTOR_OTEL_VERBOSE=1)"
_UNKNOWN: Final = "unknown"
_MAX_DIGITS: Final = 18
MAX_SIZE: Final = 1 << 50
"""A larger message is taken for an error."""


class InspectorAttributes(NamedTuple):
    """One collective on one GPU."""

    node: str
    gpu: str
    comm: str
    op: str
    ranks: int
    seq: int
    size: int
    """Bytes; 0 where they are not known."""


def read_attributes(pairs: Iterable[bytes]) -> InspectorAttributes | str:
    """The attributes of a point, each encoded as a `KeyValue`; or why the point cannot be used."""
    try:
        texts = {pair.key: pair.value.string_value for pair in map(KeyValue.FromString, pairs)}
    except DecodeError:
        return "an attribute of NCCL Inspector is not OTLP"
    return from_texts(texts)


def from_texts(texts: Mapping[str, str]) -> InspectorAttributes | str:
    """The attributes of a point by name; or why the point cannot be used."""
    comm, seq = texts.get(attributes.INSPECTOR_COMM, ""), _count(texts.get(attributes.INSPECTOR_SEQ, ""))
    if not comm or comm == _UNKNOWN or seq is None:
        return UNMATCHED
    gpu, ranks = texts.get(attributes.INSPECTOR_GPU, ""), _count(texts.get(attributes.INSPECTOR_NRANKS, ""))
    if gpu == _UNKNOWN or check_name(gpu) is not None:
        return "a point of NCCL Inspector names no GPU"
    op = texts.get(attributes.INSPECTOR_OP, "")
    size = _count(texts.get(attributes.INSPECTOR_SIZE, "")) or 0
    return InspectorAttributes(
        texts.get(attributes.INSPECTOR_NODE, ""), gpu, comm, op, ranks or 0, seq, size if size < MAX_SIZE else 0
    )


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
