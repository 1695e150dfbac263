"""Reads the status of NCCL RAS: what `ncclras -f json` prints (NCCL 2.28.7 and later), or the service itself."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ingero_analyze.diagnose import ras_client, sources
from ingero_analyze.diagnose.sources import Problems, SourceError, text, whole

MAX_RANKS: Final = 1_000_000
"""Entries of ranks in one status."""

_PEER_TO_PEER: Final = {"Send", "Recv", "SendRecv"}
_FLAGS: Final = ("finalize_called", "destroy_flag", "abort_flag")
_NO_COMMA: Final = re.compile(rb'("nvml_dev": *-?\d+)(\s*"status")')
"""NCCL 2.28.9 leaves this comma out."""

RasProcess = tuple[str, int, int]
"""Host, process and CUDA device: one rank of the job, in all of its communicators."""


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

    file: str
    at: float
    communicators: dict[str, RasCommunicator] = field(default_factory=dict)


def read_statuses(places: tuple[str, ...], problems: Problems, wait: float = 0.0) -> list[RasStatus]:
    """All statuses in files and from addresses, oldest first; what cannot be used is listed in `problems`.

    With `wait`, addresses are asked once more after so many seconds.
    """
    paths = tuple(place for place in places if Path(place).exists() or not ras_client.is_address(place))
    addresses = tuple(place for place in places if place not in paths)
    found = []
    for file, data in _contents(paths, addresses, problems, wait):
        try:
            found.append(_status(file, sources.read_json(_NO_COMMA.sub(rb"\1,\2", data)), problems))
        except SourceError as error:
            problems.add(file, str(error))
    return sorted(found, key=lambda status: status.at)


def _contents(
    paths: tuple[str, ...], addresses: tuple[str, ...], problems: Problems, wait: float
) -> Iterator[tuple[str, bytes]]:
    """Every file and every answer of an address, each with its name."""
    for file, data in sources.contents_of(paths, (".json", ".json.gz"), problems):
        yield str(file), data
    for pause in (0.0, wait) if wait else (0.0,):
        time.sleep(pause if addresses else 0.0)
        answered = []
        for address in addresses:
            try:
                yield address, ras_client.fetch_status(address)
                answered.append(address)
            except SourceError as error:
                problems.add(address, str(error))
        addresses = tuple(answered)


def _status(file: str, tree: Any, problems: Problems) -> RasStatus:
    if not isinstance(tree, dict) or not isinstance(tree.get("communicators"), list):
        raise SourceError("no status of NCCL RAS: communicators is missing")
    try:
        at = datetime.strptime(text(tree.get("timestamp")), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise SourceError("timestamp: a time as in 2026-01-31 12:00:00 was expected") from None
    status, entries = RasStatus(file, at), 0
    for place, item in enumerate(tree["communicators"]):
        try:
            comm = _communicator(item)
            entries += len(comm.places)
            if entries > MAX_RANKS:
                problems.add(file, f"more than {MAX_RANKS} ranks; the rest is left out")
                break
            if comm.name in status.communicators:
                raise SourceError("hash: the same communicator twice")
            status.communicators[comm.name] = comm
        except SourceError as error:
            problems.add(file, f"communicators[{place}]: {error}")
    return status


def _communicator(item: Any) -> RasCommunicator:
    if not isinstance(item, dict):
        raise SourceError("an object was expected")
    name, size = text(item.get("hash"), 40), whole(item.get("size"))
    if not name or size is None or not 1 <= size <= MAX_RANKS:
        raise SourceError("hash and size were expected")
    comm = RasCommunicator(f"{name}/{text(item.get('secondary_hash'), 80)}", size)
    for part in ("ranks", "missing_ranks"):
        entries = item.get(part, [])
        if not isinstance(entries, list):
            raise SourceError(f"{part}: a list was expected")
        for place, entry in enumerate(entries):
            try:
                _add(comm, entry, missing=part == "missing_ranks")
            except SourceError as error:
                raise SourceError(f"{part}[{place}]: {error}") from None
    return comm


def _add(comm: RasCommunicator, entry: Any, *, missing: bool) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("status"), dict):
        raise SourceError("an object with a status was expected")
    rank, pid, device = (whole(entry.get(name)) for name in ("rank", "pid", "cuda_dev"))
    if rank is None or not 0 <= rank < comm.size or pid is None or device is None:
        raise SourceError("rank, pid and cuda_dev were expected, the rank below the communicator's size")
    host, status = text(entry.get("host"), 253), entry["status"]
    process = (host, pid, device) if pid >= 0 else (f"{comm.name} rank", rank, device)
    if process in comm.places or rank in comm.places.values():
        raise SourceError(f"rank {rank} is listed twice")
    if missing:
        comm.places[process] = rank
        (comm.dead if status.get("considered_dead") is True else comm.unresponsive).add(process)
        return
    counts = entry.get("collective_counts")
    if not isinstance(counts, dict) or len(counts) > 64:
        raise SourceError("collective_counts: counts by operation were expected")
    started = {text(op, 40): whole(count) for op, count in counts.items() if op not in _PEER_TO_PEER}
    if any(count is None or count < 0 for count in started.values()):
        raise SourceError("collective_counts: counts by operation were expected")
    comm.places[process] = rank
    comm.counts[process] = {op: count for op, count in started.items() if count}
    comm.settled &= whole(status.get("init_state")) == 0 and not any(status.get(flag) is True for flag in _FLAGS)
