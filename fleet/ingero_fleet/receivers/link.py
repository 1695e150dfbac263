"""The link between Fleet and a receiver process: messages over a pair of sockets that nobody else has.

A message is its length in four octets, a kind in one, and the body. Reports travel as JSON (names, cohorts, hardware)
followed by fixed records; the board as JSON.
"""

import asyncio
import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np
import orjson

from ingero_fleet.board import Board
from ingero_fleet.scores import BATCH_RECORD, Batch, Hardware
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Encoding, Signal

HEAD: Final = struct.Struct("!IB")
JSON_LENGTH: Final = struct.Struct("!I")
PUSH_HEAD: Final = struct.Struct("!Hd?B")
"""Length of the cluster, when it came, whether it is JSON, signal."""

PART: Final = 1000
"""Nodes in one message, so that neither side is held up for longer than about a millisecond."""


_SIGNALS: Final = tuple(Signal)


class Kind(IntEnum):
    """What a message is."""

    HELLO = 1
    """To the receiver: settings, ports, clock."""
    READY = 2
    """From the receiver: it listens."""
    FAILED = 3
    """From the receiver: it cannot listen, and why."""
    COLLECT = 4
    """To the receiver: hand over what was heard."""
    BATCH = 5
    """From the receiver: reports."""
    DONE = 6
    """From the receiver: that was all; its counts."""
    TOLD = 7
    """To the receiver: nodes that are told something else than most."""
    BOARD = 8
    """To the receiver: the rest of the board, which replaces the one before."""
    PUSH = 9
    """From the receiver: a push with collectives or marks, as it came."""
    RELOAD = 10
    """To the receiver: read tokens and certificates again."""
    STOP = 11
    """To the receiver: finish what is under way and end."""


async def read(reader: asyncio.StreamReader) -> tuple[Kind, bytes]:
    """The next message; raises `asyncio.IncompleteReadError` when the other side is gone."""
    length, kind = HEAD.unpack(await reader.readexactly(HEAD.size))
    return Kind(kind), await reader.readexactly(length)


def message(kind: Kind, body: bytes = b"") -> bytes:
    """One message on the wire."""
    return HEAD.pack(len(body), kind) + body


def encode_batch(batch: Batch) -> bytes:
    """The body of BATCH."""
    words = orjson.dumps([batch.names, batch.cohorts, list(map(tuple, batch.hardware)), list(batch.said.items())])
    return JSON_LENGTH.pack(len(words)) + words + batch.records.tobytes()


def decode_batch(body: bytes) -> Batch:
    """Read what `encode_batch` gave; raises `ValueError` for anything else."""
    (length,) = JSON_LENGTH.unpack_from(body)
    end = JSON_LENGTH.size + length
    names, cohorts, hardware, said = orjson.loads(memoryview(body)[JSON_LENGTH.size : end])
    records = np.frombuffer(body, BATCH_RECORD, offset=end)
    if len(records) != len(names):
        raise ValueError("names and records differ in number")
    return Batch(
        [(cluster, node) for cluster, node in names],
        [tuple(key) for key in cohorts],
        [Hardware(*item) for item in hardware],
        records,
        dict(said),
    )


def encode_board(board: Board) -> Iterator[bytes]:
    """The messages that carry a board: TOLD as often as it takes, then BOARD."""
    others = [(line, *node) for node, line in board.others.items()]
    for start in range(0, len(others), PART):
        yield message(Kind.TOLD, orjson.dumps(others[start : start + PART]))
    yield message(Kind.BOARD, orjson.dumps([board.by, list(board.thresholds.items()), board.usual, board.as_of]))


class BoardReader:
    """Puts a board together from its messages."""

    def __init__(self) -> None:
        self._others: dict[tuple[str, str], str] = {}

    def told(self, body: bytes) -> None:
        """Take a TOLD."""
        self._others.update({(cluster, node): line for line, cluster, node in orjson.loads(body)})

    def board(self, body: bytes) -> Board:
        """Take a BOARD, which ends it."""
        by, thresholds, usual, as_of = orjson.loads(body)
        others, self._others = self._others, {}
        return Board(tuple(by), {tuple(key): value for key, value in thresholds}, usual, others, as_of)


def encode_push(push: Push, now: float) -> bytes:
    """The body of PUSH."""
    cluster = push.cluster.encode()
    head = PUSH_HEAD.pack(len(cluster), now, push.encoding == "json", _SIGNALS.index(push.signal))
    return head + cluster + push.body


def decode_push(body: bytes) -> tuple[Push, float]:
    """Read what `encode_push` gave; raises `ValueError` or `struct.error` for anything else."""
    length, now, is_json, signal = PUSH_HEAD.unpack_from(body)
    end = PUSH_HEAD.size + length
    encoding: Encoding = "json" if is_json else "protobuf"
    if signal >= len(_SIGNALS):
        raise ValueError(f"no signal {signal}")
    return Push(_SIGNALS[signal], encoding, body[end:], body[PUSH_HEAD.size : end].decode()), now


def encode_hello(config: Mapping[str, Any], ports: Mapping[str, int], clock_offset: float) -> bytes:
    """The body of HELLO."""
    return orjson.dumps({"config": config, "ports": ports, "clock_offset": clock_offset})
