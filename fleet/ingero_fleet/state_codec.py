"""State as bytes: plain values as JSON, followed by arrays as they lie in memory. Equal states give equal bytes."""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from ingero_detect.nodes.column_store import SnapshotError

State = dict[str, Any]
"""Text, numbers, booleans, `None`, bytes, arrays, dataclasses, and lists and dictionaries by text of these."""

Parts = list[bytes | memoryview]
"""An encoded state; joined, they are its bytes."""

HEAD: Final = struct.Struct("!8sQ")
"""Identification, and the length of the JSON that follows."""

IDENTIFICATION: Final = b"INGERO\x01\n"
"""The first bytes of a state. The number is the version of this encoding."""

DIGEST_BYTES: Final = 16

_ARRAY: Final = "\0array"


def encode_state(state: Mapping[str, Any]) -> Parts:
    """The parts of a state's bytes. Arrays are not copied: they must not change until the parts are used."""
    arrays: Parts = []

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            value = np.frombuffer(value, np.uint8)
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                raise TypeError("an array of objects is no state")
            arrays.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if value.size else b"")
            return {_ARRAY: [value.dtype.str, list(value.shape)]}
        if isinstance(value, np.generic):
            return value.item()
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        raise TypeError(f"{type(value).__name__} is no state")

    header = json.dumps(state, default=plain, separators=(",", ":")).encode()
    return [HEAD.pack(IDENTIFICATION, len(header)), header, *arrays]


def hash_of(parts: Iterable[bytes | memoryview]) -> str:
    """The state hash: equal for equal states, on every machine."""
    found = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def sealed(parts: Parts) -> bytes:
    """The bytes of a state, ended by their hash."""
    return b"".join([*parts, bytes.fromhex(hash_of(parts))])


def hash_in(data: bytes) -> str:
    """The state hash that `sealed` put into a state's bytes."""
    return data[-DIGEST_BYTES:].hex()


def unsealed(data: bytes) -> State:
    """Read what `sealed` gave; raises `SnapshotError` for anything else."""
    body = memoryview(data)[:-DIGEST_BYTES]
    if not data.startswith(IDENTIFICATION):
        raise SnapshotError("the snapshot is of another format or of a newer version")
    if len(data) < HEAD.size + DIGEST_BYTES or bytes.fromhex(hash_of([body])) != data[-DIGEST_BYTES:]:
        raise SnapshotError("the snapshot is damaged: its hash does not match")
    _, length = HEAD.unpack_from(body)
    place = HEAD.size + length

    def array(item: dict[str, Any]) -> Any:
        nonlocal place
        if _ARRAY not in item:
            return item
        kind, shape = item[_ARRAY]
        dtype = np.dtype(kind)
        found = np.frombuffer(body, dtype, count=int(np.prod(shape)), offset=place).reshape(shape).copy()
        place += found.nbytes
        return found

    found: State = json.loads(bytes(body[HEAD.size : HEAD.size + length]), object_hook=array)
    return found
