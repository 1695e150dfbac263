"""Events on the agent's unix socket: one JSON object a line, distinguished by `type`."""

import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

CONTRACT_VERSION: Final = 1
"""Version of the events: types in it never lose or rename a required field."""

MAX_LINE: Final = 64 * 1024
"""Longest line that a consumer accepts, bytes."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all lines; fields that are `None` are left out."""

    type: ClassVar[str] = ""

    def to_json(self) -> str:
        """One line, without the line end."""
        known = {item.name: getattr(self, item.name) for item in fields(self)}
        present = {key: value for key, value in known.items() if value is not None}
        return json.dumps({"type": self.type, **present}, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class StragglerStateEvent(Event):
    """The node is a straggler; sent on every tick while it is."""

    type: ClassVar[str] = "straggler_state"
    node_id: str
    cluster_id: str
    score: float
    threshold: float
    detection_mode: str
    dominant_signal: str
    timestamp: str
    event_id: str | None = None
    rank: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class StragglerResolvedEvent(Event):
    """The node is no longer a straggler; sent once."""

    type: ClassVar[str] = "straggler_resolved"
    node_id: str
    cluster_id: str
    timestamp: str
    event_id: str | None = None
    rank: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryEvent(Event):
    """GPU memory that a process uses, bytes; sent when that changed, at most once a poll.

    `utilization_pct` is its share of the GPU's memory, 0 to 100. `last_alloc_size` is 0 while no allocation was seen.
    """

    type: ClassVar[str] = "memory"
    pid: int
    gpu_id: int
    allocated_bytes: int
    total_vram: int
    utilization_pct: float
    last_alloc_size: int
    timestamp_ns: int
    comm: str | None = None


@dataclass(frozen=True, kw_only=True)
class StraggleEvent(Event):
    """A process launches far less work than before while its threads are preempted.

    `throughput_drop_pct`, 0 to 100, is relative to its own earlier average; `sustained` is set on every line but the
    first of an episode. `preempting_pids` are the processes that ran instead, most recent first.
    """

    type: ClassVar[str] = "straggle"
    pid: int
    throughput_drop_pct: float
    sched_switch_count: int
    preempting_pids: list[int]
    timestamp_ns: int
    sustained: bool
    comm: str | None = None
    event_id: str | None = None
    rank: int | None = None
    world_size: int | None = None


KINDS: Final[dict[str, type[Event]]] = {
    kind.type: kind for kind in (StragglerStateEvent, StragglerResolvedEvent, MemoryEvent, StraggleEvent)
}
"""Types that this version parses into records; lines of other types are valid and only counted."""


def parse_line(line: bytes | str) -> tuple[str, Event | None]:
    """Parse a line into its type and, for a known type, its record. Unknown fields are ignored.

    Raises `ValueError` for a line that is not JSON, has no type, or lacks a required field.
    """
    try:
        tree: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("type"), str) or not tree["type"]:
        raise ValueError("no type")
    kind = KINDS.get(tree["type"])
    if kind is None:
        return tree["type"], None
    names = {item.name for item in fields(kind)}
    try:
        event = kind(**{key: value for key, value in tree.items() if key in names})
    except TypeError as error:
        raise ValueError(str(error)) from None
    for name in ("node_id", "cluster_id"):
        if name in names and not isinstance(getattr(event, name), str):
            raise ValueError(f"{name} is not text")
    if "pid" in names and not isinstance(tree["pid"], int):
        raise ValueError("pid is not a number")
    return tree["type"], event
