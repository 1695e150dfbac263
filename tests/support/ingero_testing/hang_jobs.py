"""Simulated training jobs that hang, and the Flight Recorder dumps that their ranks would leave."""

import json
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ingero_analyze.diagnose.flight_recorder_dumps import Dump, dump_of
from ingero_analyze.diagnose.sources import OperationRows, Problems
from ingero_contract.identifiers import Rank
from ingero_testing.gpu_cluster import (
    NEVER,
    Called,
    Cluster,
    Collective,
    Compute,
    Fault,
    Group,
    Instruction,
    Synchronize,
    Transfer,
)

BEGIN = 1.7e9
"""Unix seconds at which all jobs begin."""

SIZES = (16, 16, 16, 32, 32, 64, 128)
"""Ranks of a job, each size as often as it is listed."""

POLL = 0.1
"""Seconds between two looks of the watchdog, which notes what has ended."""

TIMEOUT = 600.0
"""Seconds after which a call fails, and all ranks write their dumps."""

CLOCKS = 10.0
"""Largest clock offset of a rank, seconds."""


@dataclass
class HangJob:
    """The dumps of a job by rank, and which ranks caused the hang. `kind` is what was wrong with the job."""

    number: int
    kind: str
    ranks: int
    culprits: set[int]
    dumps: dict[int, dict[str, Any]]
    faults: list[Fault] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    early: set[int] = field(default_factory=set)
    written: dict[int, float] = field(default_factory=dict)
    """When each dump was written, by its host's clock."""


def dumps_of(job: HangJob, problems: Problems) -> list[Dump]:
    """The dumps of a job as they are read from their files."""
    rows = OperationRows()
    return [
        replace(dump_of(value, Rank(rank), f"rank {rank}", problems, rows), written=job.written[rank])
        for rank, value in job.dumps.items()
    ]


def outcome(job: HangJob, kind: str, ranks: Iterable[int], possible: Iterable[int]) -> str:
    """What a verdict is: right, unknown, or an error (innocent named, cause missed, cause lacking in the list)."""
    named, listed = set(ranks), set(ranks) | set(possible)
    if named - job.culprits:
        return "innocent"
    nobody = kind in ("mismatch", "order") and not named
    if kind in ("unknown", "stuck") or nobody or named < job.culprits <= listed:
        return "unknown" if job.culprits and job.culprits <= listed else "lacking"
    return "right" if named == job.culprits and (kind == "none") == (not job.culprits) else "missed"


@dataclass(frozen=True)
class _Layout:
    tensor: int
    context: int
    pipeline: int
    data: int

    @property
    def ranks(self) -> int:
        return self.tensor * self.context * self.pipeline * self.data

    def place(self, rank: int) -> tuple[int, int, int, int]:
        rank, tensor = divmod(rank, self.tensor)
        rank, context = divmod(rank, self.context)
        pipeline, data = divmod(rank, self.data)
        return tensor, context, data, pipeline

    def groups(self, named: bool) -> dict[str, list[Group]]:
        """Of every kind of parallelism, the group of each rank."""
        number = 1
        found = {"world": [Group("0", "default_pg", tuple(range(self.ranks)))] * self.ranks}
        for axis, kind in enumerate(("tensor", "context", "data", "pipeline")):
            by_place: dict[tuple[int, ...], list[int]] = {}
            for rank in range(self.ranks):
                place = list(self.place(rank))
                place[axis] = -1
                by_place.setdefault(tuple(place), []).append(rank)
            of: dict[int, Group] = {}
            for ranks in by_place.values():
                group = Group(str(number), kind if named else "undefined", tuple(ranks))
                number += 1
                of |= dict.fromkeys(ranks, group)
            found[kind] = [of[rank] for rank in range(self.ranks)]
        return found


def _layout(rng: random.Random, sizes: list[int]) -> _Layout:
    ranks = rng.choice(sizes)
    while True:
        layout = _Layout(rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2)), rng.choice((1, 1, 2, 4, 8)), 1)
        data, rest = divmod(ranks, layout.ranks)
        if data and not rest:
            return replace(layout, data=data)


@dataclass(frozen=True)
class _Settings:
    steps: int
    batches: int
    layers: int
    world: bool
    synchronize: bool
    broadcast: bool


def _program(rank: int, layout: _Layout, groups: dict[str, list[Group]], settings: _Settings) -> list[Instruction]:
    """One rank's program: 1F1B over micro batches, then the gradients' reduction and the parameters' gathering."""
    _, _, _, stage = layout.place(rank)
    tensor, context, data, pipeline = (groups[kind][rank] for kind in ("tensor", "context", "data", "pipeline"))
    previous = pipeline.ranks[stage - 1] if stage else None
    following = pipeline.ranks[stage + 1] if stage + 1 < layout.pipeline else None
    found: list[Instruction] = []

    def half(source: int | None, target: int | None, reduce: bool) -> None:
        if source is not None:
            found.append(Transfer(pipeline, False, source, 1 << 16))
        for layer in range(settings.layers):
            if layout.context > 1:
                found.append(Collective(context, "_all_gather_base", 1 << 15))
            found.append(Compute(2e-3))
            if layout.tensor > 1:
                found.append(Collective(tensor, "all_reduce", 1 << 16))
            if reduce and layout.data > 1:
                found.append(Collective(data, "_reduce_scatter_base", 1 << (18 + layer % 2), wait=False))
        if target is not None:
            found.append(Transfer(pipeline, True, target, 1 << 16))

    warm = min(layout.pipeline - stage - 1, settings.batches)
    for _ in range(settings.steps):
        if settings.broadcast and layout.data > 1:
            found.append(Collective(data, "broadcast", 64))
        for _ in range(warm):
            half(previous, following, False)
        for batch in range(settings.batches):
            if batch + warm < settings.batches:
                half(previous, following, False)
            half(following, previous, batch == settings.batches - 1)
        if settings.world:
            found.append(Collective(groups["world"][rank], "all_reduce", 4))
        if layout.data > 1:
            found.append(Collective(data, "_all_gather_base", 1 << 18))
        found.append(Compute(1e-3))
        if settings.synchronize:
            found.append(Synchronize())
    return found


def _calls(program: list[Instruction]) -> list[int]:
    """Places of the calls in a program."""
    return [place for place, what in enumerate(program) if isinstance(what, Collective | Transfer)]


def _wrong_program(rng: random.Random, kind: str, program: list[Instruction]) -> bool:
    """Make one rank's program call something else than its peers; whether that was possible."""
    calls = [place for place in _calls(program) if isinstance(program[place], Collective)]
    if not calls:
        return False
    place = rng.choice(calls[len(calls) // 3 :])
    what = program[place]
    assert isinstance(what, Collective)
    if kind == "skipped":
        del program[place]
        return True
    op = "all_reduce" if what.op != "all_reduce" else "_all_gather_base"
    program[place] = replace(what, size=what.size * 2) if kind == "size" else replace(what, op=op)
    return True


def hang_jobs(count: int, seed: int = 0, sizes: tuple[int, ...] = SIZES) -> Iterator[HangJob]:
    """Jobs with one or two faults; a few have a program that differs on one rank, or no fault."""
    drawn = (hang_job(seed, number, sizes) for number in range(100 * count))
    return islice((job for job in drawn if job is not None), count)


def running_job(seed: int, number: int, sizes: tuple[int, ...] = SIZES) -> HangJob:
    """A healthy job whose ranks all wrote their dumps at one moment, or within a few milliseconds."""
    rng = random.Random(f"running {seed}/{number}")
    layout, groups, settings = _drawn(rng, sizes)
    programs = [_program(rank, layout, groups, settings) for rank in range(layout.ranks)]
    cluster = Cluster(programs, [], rng, rng.choice((6, 12, 24)), rng.random() < 0.3)
    cluster.run()
    moment, spread = cluster.now * rng.uniform(0.3, 0.95), rng.choice((0.0, 1e-3, 5e-3))
    cut = {rank: moment + rng.uniform(0, spread) for rank in range(layout.ranks)}
    dumps, written = _written(rng, cluster, groups, cut)
    return HangJob(number, "running", layout.ranks, set(), dumps, written=written)


def _drawn(rng: random.Random, sizes: tuple[int, ...]) -> tuple[_Layout, dict[str, list[Group]], _Settings]:
    """A layout, its groups, and what its program is like."""
    layout = _layout(rng, list(sizes))
    settings = _Settings(
        steps=rng.randint(3, 6), batches=layout.pipeline * rng.choice((1, 2)) if layout.pipeline > 1 else 1,
        layers=rng.choice((1, 2)) if layout.pipeline > 2 else rng.randint(2, 5), world=rng.random() < 0.6,
        synchronize=rng.random() < 0.5, broadcast=rng.random() < 0.2,
    )  # fmt: skip
    return layout, layout.groups(rng.random() < 0.7), settings


def hang_job(seed: int, number: int, sizes: tuple[int, ...] = SIZES) -> HangJob | None:
    """One job; `None` if its faults do not hang it."""
    rng = random.Random(f"{seed}/{number}")
    layout, groups, settings = _drawn(rng, sizes)
    programs = [_program(rank, layout, groups, settings) for rank in range(layout.ranks)]
    faults: list[Fault] = []
    culprits: set[int] = set()
    kind = rng.choices(("faults", "differs", "skipped", "size", "none"), (93, 1, 1, 1, 4))[0]
    if kind == "faults":
        chosen = rng.sample(range(layout.ranks), rng.choices((1, 2), (6, 4))[0])
        for rank in chosen:
            calls = len(_calls(programs[rank]))
            # A GPU that stops in a kernel while others wait for another rank leaves no trace.
            name = rng.choices(("host", "gpu", "gone", "kernel"), (38, 38, 20, 4 if len(chosen) == 1 else 0))[0]
            spares = rng.choices((1.0, 0.5, 0.0), (90, 5, 5))[0] if name == "gpu" else 1.0
            faults.append(Fault(name, rank, rng.randrange(calls // 3, calls), spares))
        if len(faults) == 2 and rng.random() < 0.5:
            # At once: at about the same place of their programs.
            last = len(_calls(programs[faults[1].rank]))
            faults[1].call = min(last - 1, max(0, faults[0].call + rng.randint(-3, 3)))
    elif kind != "none":
        rank = rng.randrange(layout.ranks)
        if not _wrong_program(rng, kind, programs[rank]):
            return None
        culprits = {rank}
    cluster = Cluster(programs, faults, rng, rng.choice((6, 12, 24)), rng.random() < 0.3)
    cluster.run()
    culprits |= {fault.rank for fault in faults if fault.happened < NEVER}
    hangs = any(call.ended == NEVER for rank in cluster.ranks for call in rank.calls)
    if (kind == "none") == hangs:
        return None
    return _recorded(rng, number, kind, layout, groups, cluster, culprits)


def _recorded(
    rng: random.Random, number: int, kind: str, layout: _Layout, groups: dict[str, list[Group]], cluster: Cluster,
    culprits: set[int],
) -> HangJob:  # fmt: skip
    """The dumps: some are missing, some were written early, rings hold so many entries, clocks differ."""
    gone = {fault.rank: fault.happened for fault in cluster.faults if fault.kind == "gone" and fault.happened < NEVER}
    end = cluster.now + TIMEOUT
    cut = dict.fromkeys(range(layout.ranks), end)
    missing: set[int] = set()
    for rank, at in gone.items():
        cut[rank] = at * rng.uniform(0.5, 0.95)
        missing |= {rank} if rng.random() < 0.7 else set()
    innocent = [rank for rank in range(layout.ranks) if rank not in culprits]
    if any(fault.happened < NEVER and (fault.kind == "kernel" or fault.spares < 1) for fault in cluster.faults):
        # What ended nowhere and a dump that is absent by chance are indistinguishable from a rank that is gone.
        pass
    elif rng.random() < 0.04:
        missing |= set(rng.sample(innocent, rng.choice((1, 1, 2))))
    elif rng.random() < 0.06:
        for rank in rng.sample(innocent, rng.choice((1, 1, 2))):
            cut[rank] = cluster.now * rng.uniform(0.1, 0.8)
    dumps, written = _written(rng, cluster, groups, {rank: cut[rank] for rank in set(cut) - missing})
    early = {rank for rank in dumps if cut[rank] < end}
    return HangJob(number, kind, layout.ranks, culprits, dumps, cluster.faults, missing, early, written)


def _written(
    rng: random.Random, cluster: Cluster, groups: dict[str, list[Group]], cut: dict[int, float]
) -> tuple[dict[int, Any], dict[int, float]]:
    """The dumps that ranks write at these times, and the times by the clocks of their hosts."""
    ring, timed, batched = rng.choice((32, 64, 256, 2000)), rng.random() < 0.4, rng.random() < 0.5
    dumps, written = {}, {}
    for rank, at in cut.items():
        own, clock = {kind: of[rank] for kind, of in groups.items()}, rng.uniform(-CLOCKS, CLOCKS)
        calls = [call for call in cluster.ranks[rank].calls if call.at <= at]
        dumps[rank] = _dump(clock, own, calls, at, ring, timed, batched)
        written[rank] = BEGIN + clock + at
    return dumps, written


def _dump(
    clock: float, groups: dict[str, Group], calls: list[Called], cut: float, ring: int, timed: bool, batched: bool
) -> dict[str, Any]:
    """One rank's dump as PyTorch writes it."""
    entries: list[dict[str, Any]] = []
    record = 0
    dropped = sum(2 if batched and isinstance(call.what, Transfer) else 1 for call in calls) - ring
    local = {group.name: place for place, group in enumerate(groups.values())}
    counts = {name: [0, 0, 0] for name in local}
    status = {name: [-1, -1, -1] for name in local}

    def seen(noted: float) -> int:
        """When the recorder saw something: as soon as the watchdog noted it, or when the dump was written."""
        return int((BEGIN + clock + min(noted, cut)) * 1e9)

    for call in calls:
        group, what = call.what.group, call.what
        count = counts[group.name]
        two = isinstance(what, Transfer)
        count[1 if two else 0] += 1
        count[2] += 1
        ended, entered = call.ended <= cut, call.entered <= cut
        noted = POLL * math.ceil(call.ended / POLL) if ended else NEVER
        for place, known in enumerate((True, entered, ended)):
            if known:
                status[group.name][place] = count[1 if two else 0]
        record += 2 if two and batched else 1
        if record <= dropped:
            continue
        if isinstance(what, Transfer):
            ranks = group.ranks
            own = call.key[1] if what.send else call.key[2]
            name = f"{'send' if what.send else 'recv'} {ranks.index(own)}{'->' if what.send else '<-'}"
            name += str(ranks.index(what.peer))
        else:
            name = what.op
        entry = {
            "record_id": record - (2 if two and batched else 1),
            "pg_id": local[group.name], "process_group": (group.name, group.desc),
            "collective_seq_id": count[0], "p2p_seq_id": count[1], "op_id": count[2],
            "profiling_name": f"nccl:{name}", "time_created_ns": int((BEGIN + clock + call.at) * 1e9),
            "input_sizes": [[what.size]], "input_dtypes": ["BFloat16"],
            "output_sizes": [[what.size]], "output_dtypes": ["BFloat16"],
            "state": "completed" if ended else "started" if timed and entered else "scheduled",
            "time_discovered_started_ns": seen(noted) if timed and entered else None,
            "time_discovered_completed_ns": seen(noted) if ended else None,
            "retired": noted <= cut, "timeout_ms": int(TIMEOUT * 1e3), "is_p2p": two, "frames": [],
        }  # fmt: skip
        if two and batched:
            # Calls of a batch are recorded without a state; an entry after them has that of the batch.
            entries.append(entry | {"state": "scheduled", "retired": False, "time_discovered_started_ns": None,
                                    "time_discovered_completed_ns": None})  # fmt: skip
            entry = entry | {"record_id": record - 1, "profiling_name": "nccl:coalesced"}
        entries.append(entry)
    return {
        "version": "2.10",
        "pg_config": {
            group.name: {"name": group.name, "desc": group.desc, "ranks": json.dumps(list(group.ranks))}
            for group in groups.values()
        },
        "pg_status": {
            str(local[name]): dict(zip((f"last_{what}_collective" for what in ("enqueued", "started", "completed")),
                                       values, strict=True))
            for name, values in status.items()
        },
        "entries": entries[-ring:],
    }  # fmt: skip
