"""Reads the status of NCCL RAS: what `ncclras -f json` prints (NCCL 2.28.7 and later). Pure."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import orjson

from ingero_contract.json_values import text, whole

MAX_RANKS: Final = 1_000_000
"""Entries of ranks in one status."""

_PEER_TO_PEER: Final = {"Send", "Recv", "SendRecv"}
_FLAGS: Final = ("finalize_called", "destroy_flag", "abort_flag")
_NO_COMMA: Final = re.compile(rb'("nvml_dev": *-?\d+)(\s*"status")')
"""NCCL 2.28.9 leaves this comma out."""

RasProcess = tuple[str, int, int]
"""Host, process and CUDA device: one rank of the job, in all of its communicators."""


class RasUnreadable(ValueError):
    """A status, or a part of it, is not as NCCL writes it; the text names the place."""


@dataclass
class RasCommunicator:
    """One communicator: how many collectives of each operation each rank has started, and who did not answer."""

    name: str
    size: int
    places: dict[RasProcess, int] = field(default_factory=dict)
    counts: dict[RasProcess, dict[str, int]] = field(default_factory=dict)
    dead: set[RasProcess] = field(default_factory=set)
    unresponsive: set[RasProcess] = field(default_factory=set)
    settled: bool = True
    """Whether it is in normal use on all ranks: not being initialised, finalised or aborted."""

    @property
    def complete(self) -> bool:
        return len(self.counts) == self.size


@dataclass
class RasStatus:
    """All communicators at one moment."""

    at: float
    """Seconds, by the clock of the process that was asked."""
    communicators: dict[str, RasCommunicator] = field(default_factory=dict)

    @property
    def job(self) -> str:
        """A name of the job while it keeps its communicators, equal on all of its hosts: 16 hexadecimal digits."""
        names = "\n".join(sorted(self.communicators))
        return blake2b(names.encode(), digest_size=8).hexdigest()

    @property
    def hosts(self) -> list[str]:
        """Addresses of the hosts that answered, sorted."""
        return sorted({host for comm in self.communicators.values() for host, _, _ in comm.counts})


def parse_status(data: bytes, problem: Callable[[str], None]) -> RasStatus:
    """The status in a JSON document; parts that cannot be read are left out and told to `problem`.

    Raises `RasUnreadable` when it is no status.
    """
    try:
        tree = orjson.loads(_NO_COMMA.sub(rb"\1,\2", data))
    except orjson.JSONDecodeError as error:
        begins = data[:1000].lstrip()[:1] == b"{"
        why = error if begins else "what `ncclras -f json` prints is read"
        raise RasUnreadable(f"not JSON: {why}") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("communicators"), list):
        raise RasUnreadable("no status of NCCL RAS: communicators is missing")
    try:
        at = datetime.strptime(text(tree.get("timestamp")), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise RasUnreadable("timestamp: a time as in 2026-01-31 12:00:00 was expected") from None
    status, entries = RasStatus(at), 0
    for place, item in enumerate(tree["communicators"]):
        try:
            comm = _communicator(item)
            entries += len(comm.places)
            if entries > MAX_RANKS:
                problem(f"more than {MAX_RANKS} ranks; the rest is left out")
                break
            if comm.name in status.communicators:
                raise RasUnreadable("hash: the same communicator twice")
            status.communicators[comm.name] = comm
        except RasUnreadable as error:
            problem(f"communicators[{place}]: {error}")
    return status


def _communicator(item: Any) -> RasCommunicator:
    if not isinstance(item, dict):
        raise RasUnreadable("an object was expected")
    name, size = text(item.get("hash"), 40), whole(item.get("size"))
    if not name or size is None or not 1 <= size <= MAX_RANKS:
        raise RasUnreadable("hash and size were expected")
    comm = RasCommunicator(f"{name}/{text(item.get('secondary_hash'), 80)}", size)
    for part in ("ranks", "missing_ranks"):
        entries = item.get(part, [])
        if not isinstance(entries, list):
            raise RasUnreadable(f"{part}: a list was expected")
        for place, entry in enumerate(entries):
            try:
                _add(comm, entry, missing=part == "missing_ranks")
            except RasUnreadable as error:
                raise RasUnreadable(f"{part}[{place}]: {error}") from None
    return comm


def _add(comm: RasCommunicator, entry: Any, *, missing: bool) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("status"), dict):
        raise RasUnreadable("an object with a status was expected")
    rank, pid, device = (whole(entry.get(name)) for name in ("rank", "pid", "cuda_dev"))
    if rank is None or not 0 <= rank < comm.size or pid is None or device is None:
        raise RasUnreadable("rank, pid and cuda_dev were expected, the rank below the communicator's size")
    host, status = text(entry.get("host"), 253), entry["status"]
    process = (host, pid, device) if pid >= 0 else (f"{comm.name} rank", rank, device)
    if process in comm.places or rank in comm.places.values():
        raise RasUnreadable(f"rank {rank} is listed twice")
    if missing:
        comm.places[process] = rank
        (comm.dead if status.get("considered_dead") is True else comm.unresponsive).add(process)
        return
    counts = entry.get("collective_counts")
    if not isinstance(counts, dict) or len(counts) > 64:
        raise RasUnreadable("collective_counts: counts by operation were expected")
    started = {text(op, 40): whole(count) for op, count in counts.items() if op not in _PEER_TO_PEER}
    if any(count is None or count < 0 for count in started.values()):
        raise RasUnreadable("collective_counts: counts by operation were expected")
    comm.places[process] = rank
    comm.counts[process] = {op: count for op, count in started.items() if count}
    comm.settled &= whole(status.get("init_state")) == 0 and not any(status.get(flag) is True for flag in _FLAGS)
