"""Says whether a job had been quiet for long when its dumps were written. Pure.

A dump is one moment. In a running job, too, everybody waits for one rank for a moment. Whoever asks where a job hangs
is taken at their word unless the dumps contradict: their files were written just after the last sign of life.

A copy of a file may be younger than the dump, so the times of files only prove that the job was quiet for a short
time. So does what ended after the watchdog had looked last, which it does ten times a second. How long it was quiet
is known from entries: the recorder looks at what is under way when it writes a dump, so the time at which it found a
kernel started that has not ended is that of the dump (`FlightRecorder::dump_entries` and `update_state` of PyTorch).
Where enough dumps have such a time, those of files are not needed.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ingero_analyze.diagnose.flight_recorder_dumps import Call, Dump

HANGS: Final = 30.0
"""Seconds without a sign of life from which a job hangs; fewer where its own timeout is shorter."""

ALIVE: Final = 0.25
"""Share of the dumps, a few of which may be early ones of a job that hangs, above which such ends are its life."""

CLOCKS: Final = 30.0
"""Seconds by which a file may be older than what it contains because clocks differ; beyond that nothing is known."""


def quiet_seconds(dumps: Sequence[Dump]) -> float | None:
    """How long the job was quiet at most when its dumps were written, if that is too short to call it a hang.

    `None` if it was quiet for long, or nothing says how long. The longest time of any rank counts.
    """
    pending = [(dump, call) for dump in dumps for call in _pending(dump) if call.created_ns > 0]
    limit = min([HANGS, *(call.timeout for _, call in pending if call.timeout > 0)])
    if any(dump.taken_ns - call.created_ns >= limit * 1e9 for dump, call in pending):
        return None
    if sum(dump.fresh > 0 and dump.retired > 0 for dump in dumps) > ALIVE * len(dumps):
        return 0.0
    # What was seen before the last sign of life was seen for an earlier dump.
    known = [(dump.taken_ns - dump.active_ns) / 1e9 for dump in dumps if dump.taken_ns >= dump.active_ns > 0]
    if len(known) > ALIVE * len(dumps):
        return max(0.0, *known) if max(known) < limit else None
    quiet = [dump.written - dump.active_ns / 1e9 for dump in dumps if dump.written > 0 and dump.active_ns > 0]
    if not quiet or max(quiet) >= limit or min(quiet) < -CLOCKS:
        return None
    return max(0.0, *quiet)


def _pending(dump: Dump) -> Iterator[Call]:
    """The rank's calls that have not ended."""
    for part in dump.parts.values():
        yield from part.open.values()
        for peer in part.peers.values():
            yield from peer.pending
