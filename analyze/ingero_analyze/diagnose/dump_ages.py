"""Says whether a job had been quiet for long when its dumps were written, from the times of their files. Pure.

A dump is one moment. In a running job, too, everybody waits for one rank for a moment. That a job hangs is known only
where its ranks neither called nor ended anything for long before their dumps were written. A copy of a file may be
younger than the dump, so the times of files only prove that the job was quiet for a short time.
"""

from collections.abc import Sequence
from typing import Final

from ingero_analyze.diagnose.flight_recorder_dumps import Dump

HANGS: Final = 30.0
"""Seconds without a sign of life from which a job hangs; fewer where its own timeout is shorter."""

CLOCKS: Final = 30.0
"""Seconds by which a file may be older than what it contains because clocks differ; beyond that nothing is known."""


def quiet_seconds(dumps: Sequence[Dump]) -> float | None:
    """How long the job was quiet at most when its dumps were written, if that is too short to call it a hang.

    `None` if it was quiet for long, or the times of the files do not say. The longest time of any rank counts.
    """
    quiet = [dump.written - dump.active_ns / 1e9 for dump in dumps if dump.written > 0 and dump.active_ns > 0]
    limit = min([HANGS, *(dump.timeout for dump in dumps if dump.timeout > 0)])
    if not quiet or max(quiet) >= limit or min(quiet) < -CLOCKS:
        return None
    return max(0.0, *quiet)
