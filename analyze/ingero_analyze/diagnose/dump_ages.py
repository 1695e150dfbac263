"""Says whether a job had been quiet for long when its dumps were written. Pure.

A dump is one moment. In a running job, too, everybody waits for one rank for a moment. That a job hangs is known only
where something was under way for long before its dump was taken. Three things show that:

- The entries. The recorder looks at what is under way when it writes a dump, so the time at which it found a kernel
  started that has not ended is that of the dump (`FlightRecorder::dump_entries` and `update_state` of PyTorch).
- The files, where they were written when an operation under way had just reached its timeout: so the watchdog does.
- Copies of files that have kept their times. The time of any other file may be that of the copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ingero_analyze.diagnose.flight_recorder_dumps import Call, Dump

HANGS: Final = 30.0
"""Seconds without a sign of life from which a job hangs; fewer where its own timeout is shorter."""

CLOCKS: Final = 30.0
"""Seconds by which a file may be older than what it contains because clocks differ; beyond that nothing is known."""

WATCHDOG: Final = (1.0, 15.0, 0.1)
"""Seconds before and after a timeout, and share of the timeout after it, within which the watchdog writes dumps."""


@dataclass(frozen=True)
class Quiet:
    """Whether the job is known to hang. `seconds`: how long it was quiet at most, where that is known to be short."""

    hangs: bool
    seconds: float | None = None


def quiet_before(dumps: Sequence[Dump]) -> Quiet:
    """How long the job was quiet when its dumps were written. The longest time of any rank counts."""
    pending = [(dump, call) for dump in dumps for call in _pending(dump) if call.created_ns > 0]
    limit = min([HANGS, *(call.timeout for _, call in pending if call.timeout > 0)])
    if any(dump.taken_ns - call.created_ns >= limit * 1e9 for dump, call in pending):
        return Quiet(hangs=True)
    quiet = [dump.written - dump.active_ns / 1e9 for dump in dumps if dump.written > 0 and dump.active_ns > 0]
    if not quiet or min(quiet) < -CLOCKS:
        return Quiet(hangs=False)
    if max(quiet) < limit:
        return Quiet(hangs=False, seconds=max(0.0, *quiet))
    late = [
        (dump.written - call.created_ns / 1e9 - call.timeout, call.timeout)
        for dump, call in pending if dump.written > 0 and call.timeout > 0
    ]  # fmt: skip
    before, after, share = WATCHDOG
    if any(-before <= seconds <= after + share * timeout for seconds, timeout in late):
        return Quiet(hangs=True)
    kept = all(dump.kept for dump in dumps if dump.written > 0)
    return Quiet(hangs=kept and all(seconds <= after + share * timeout for seconds, timeout in late))


def _pending(dump: Dump) -> Iterator[Call]:
    """The rank's calls that have not ended."""
    for part in dump.parts.values():
        yield from part.open.values()
        for peer in part.peers.values():
            yield from peer.pending
