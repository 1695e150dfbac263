"""Tells process groups apart that have one name on different ranks, and jobs that have different ranks. Pure.

PyTorch numbers groups on each rank. Where a program creates only the groups that a rank belongs to, one number is
that of several groups; their members, which every rank reports, tell them apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ingero_analyze.diagnose.flight_recorder_dumps import Dump
from ingero_contract.identifiers import Rank

DEFAULT: Final = "default_pg"
"""Description of the group of all ranks."""

Members = tuple[Rank, ...]


def with_distinct_groups(dumps: Sequence[Dump]) -> list[Dump]:
    """The dumps with another name for each group, where several disjoint ones have the same name."""
    reported: dict[str, set[Members]] = {}
    for dump in dumps:
        for name, members in dump.members.items():
            if dump.rank in members:
                reported.setdefault(name, set()).add(members)
    several = {name: sets for name, sets in reported.items() if len(sets) > 1 and _are_disjoint(sets)}
    return [_renamed(dump, _new_names(dump.rank, several)) for dump in dumps] if several else list(dumps)


def job_sizes(dumps: Sequence[Dump]) -> list[int]:
    """How many ranks the group of all ranks has, as different dumps report it."""
    return sorted({
        len(members)
        for dump in dumps
        for name, members in dump.members.items()
        if (part := dump.parts.get(name)) is not None and part.desc == DEFAULT
    })  # fmt: skip


def _are_disjoint(sets: set[Members]) -> bool:
    return sum(map(len, sets)) == len(set().union(*sets))


def _new_names(rank: Rank, several: Mapping[str, set[Members]]) -> dict[str, str]:
    """By name of a group, the name of the one that the rank is in."""
    own = {name: next((members for members in sets if rank in members), ()) for name, sets in several.items()}
    return {name: f"{name} ({members[0]} to {members[-1]})" for name, members in own.items() if members}


def _renamed(dump: Dump, names: Mapping[str, str]) -> Dump:
    def named(name: str) -> str:
        return names.get(name, name)

    return replace(
        dump,
        parts={named(name): part for name, part in dump.parts.items()},
        members={named(name): members for name, members in dump.members.items()},
        names={handle: named(name) for handle, name in dump.names.items()},
        calls=[(named(name), seq, op, order) for name, seq, op, order in dump.calls],
        collectives={(named(name), seq): order for (name, seq), order in dump.collectives.items()},
    )  # fmt: skip
