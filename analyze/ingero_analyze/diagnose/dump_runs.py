"""Tells dumps of different runs of a job apart, which one folder has where only some ranks dumped again. Pure.

The ranks of one run call their collectives within seconds of one another. A run that hangs ends by a timeout, usually
of minutes, before the next one begins. So dumps all of whose calls lie so long before those of most others are of an
earlier run, unless their communicators are the same. Clocks that are off by hours on every host tell nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ingero_analyze.diagnose.flight_recorder_dumps import Dump

SMALLEST_GAP: Final = 60.0
"""Seconds without a call between two runs. Clocks of hosts are taken to differ by less."""

FULL_GAP: Final = 600.0
"""The same before a dump that has dropped its first calls, which may have been made in between."""


@dataclass(frozen=True)
class DumpRuns:
    """Dumps of the run that is judged, and those of earlier ones. `unclear`: most dumps are not of the last run."""

    judged: tuple[Dump, ...]
    earlier: tuple[Dump, ...] = ()
    unclear: bool = False


def separate_runs(dumps: Sequence[Dump]) -> DumpRuns:
    """The dumps of the last run, if most dumps are of it."""
    runs = _runs([dump for dump in dumps if dump.last_ns > 0])
    untimed = [dump for dump in dumps if dump.last_ns <= 0]
    together = sum(len(run) for run in runs if len(run) > 1)
    if len(runs) < 2 or (len(runs) > 2 and 2 * together <= len(dumps)):
        return DumpRuns(tuple(dumps))
    earlier = tuple(sorted((dump for run in runs[:-1] for dump in run), key=lambda dump: dump.rank))
    if 2 * len(runs[-1]) <= len(dumps):
        return DumpRuns(tuple(dumps), earlier, unclear=True)
    return DumpRuns(tuple(sorted((*runs[-1], *untimed), key=lambda dump: dump.rank)), earlier)


def _runs(dumps: Sequence[Dump]) -> list[list[Dump]]:
    """Dumps by run, the last run last."""
    runs: list[list[Dump]] = []
    for dump in sorted(dumps, key=lambda dump: dump.first_ns):
        last = max((other.last_ns for other in runs[-1]), default=0) if runs else 0
        if runs and dump.first_ns - last < (FULL_GAP if dump.full else SMALLEST_GAP) * 1e9:
            runs[-1].append(dump)
        else:
            runs.append([dump])
    place = len(runs) - 1
    while place > 0:
        names = set().union(*(dump.communicators for dump in runs[place]))
        same = [
            number for number in range(place) if names & set().union(*(one.communicators for one in runs[number]))
        ]
        if same:
            runs[same[0] : place + 1] = [[dump for run in runs[same[0] : place + 1] for dump in run]]
            place = same[0]
        else:
            place -= 1
    return runs
