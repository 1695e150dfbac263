"""What judging replicas publish after each tick, for Fleets that only receive: the answers to pushes. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from ingero_contract.identifiers import NodeKey, node_key
from ingero_fleet.replication.parts import KEY, MAX_BODY_BYTES, unpack
from ingero_fleet.verdict_cache import NodeVerdicts, VerdictCache

PART: Final = "Ingero-Part"
"""Header of a part: its number from 1, and how many there are."""


def encode_verdicts(ticks: int, cache: VerdictCache) -> bytes:
    """The answers after so many ticks."""
    verdicts = cache.verdicts
    return orjson.dumps(
        {
            "ticks": ticks, "by": cache.by, "thresholds": list(cache.thresholds.items()), "default": verdicts.default,
            "verdicts": [(*node, line) for node, line in verdicts.overrides.items()],
        }
    )  # fmt: skip


def decode_verdicts(body: bytes, now: float) -> tuple[int, VerdictCache]:
    """Read what `encode_verdicts` gave; raises `ValueError` for anything else.

    Nodes that this Fleet has known before `now` get their line.
    """
    try:
        item: dict[str, Any] = orjson.loads(body)
        ticks, by, default = item["ticks"], tuple(item["by"]), item["default"]
        thresholds = {tuple(map(str, key)): float(value) for key, value in item["thresholds"]}
        overrides: dict[NodeKey, str] = {node_key(cluster, node): line for cluster, node, line in item["verdicts"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"these are no verdicts: {type(error).__name__} {error}") from None
    if type(ticks) is not int or not all(isinstance(text, str) for text in (default, *by, *overrides.values())):
        raise ValueError("these are no verdicts: a value has another type")
    return ticks, VerdictCache(by, thresholds, NodeVerdicts(default, overrides, now))


class VerdictParts:
    """Joins the parts of one body after the other; a body with a missing part is left out."""

    def __init__(self) -> None:
        self._key = ""
        self._parts: list[bytes] = []

    def add(self, headers: Mapping[str, str], part: bytes) -> bytes | None:
        """The body that this part ends, if it ends one; raises `ValueError` for what no Fleet has published."""
        number, _, count = headers.get(PART, "").partition("/")
        if not number.isdecimal() or not count.isdecimal():
            raise ValueError("a message without the number of its part")
        key = headers.get(KEY, "")
        if number == "1":
            self._key, self._parts = key, []
        if key != self._key or int(number) != len(self._parts) + 1:
            self._key, self._parts = "", []
            return None
        self._parts.append(part)
        if sum(map(len, self._parts)) > MAX_BODY_BYTES:
            self._key, self._parts = "", []
            raise ValueError(f"a body of more than {MAX_BODY_BYTES} bytes")
        if int(number) < int(count):
            return None
        body, self._parts = b"".join(self._parts), []
        return unpack(headers, body)
