"""Reads PyTorch profiler traces (Kineto, Chrome format) of several ranks. All but `read_events` is pure.

A NCCL kernel waits on the GPU for the last rank, so the late rank's kernel is the shortest; the time of the other
kernels in a step is the rank's own work. Sends and receives show the stages of a pipeline. In a job on CPUs, gloo's
operations and the rest of the step show the same.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from ingero_analyze.diagnose import sources
from ingero_analyze.diagnose.sources import (
    Claims,
    OperationRows,
    Problems,
    SourceData,
    SourceError,
)
from ingero_analyze.tables import LATEST
from ingero_contract.identifiers import Rank
from ingero_contract.json_values import number, text, whole
from ingero_detect.grouped import Bools, Floats

CLAIMS: Final = Claims(
    can=(
        "which rank works longer than others in a step, in which kernels, and which rank the others wait for",
        "that stages or sequences are uneven, where steps were recorded (profiler.step())",
    ),
    cannot=(
        "anything about ranks or times that were not profiled; the profiler itself slows a rank down",
        "slowness inside of a collective's kernel without --topology: all ranks take as long as the slowest",
        "why a rank works longer: dcgm-exporter (--dcgm) shows throttled GPUs",
    ),
)

SUFFIXES: Final = (".json",)
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,12})$")
_NCCL: Final = re.compile(r"^(?:nccl|rccl)(?:Dev)?Kernel_?([A-Za-z]+)|nccl|rccl")
_RANKS: Final = re.compile(r"\[\d{1,7}(, ?\d{1,7}){0,9999}\]")
_PAIRS: Final = ("send", "recv", "sendrecv")
"""Operations of two ranks each, or several of them in one kernel."""

_BATCH: Final = "coalesced"
"""What PyTorch calls several operations in one kernel, of whatever kind."""

_PEERS: Final = {"send": "Dst Rank", "recv": "Src Rank"}
"""Where a kernel's event has the other rank, by its place in the group."""

_COMPUTES: Final = "aten::"
"""How names of operations begin that compute, and wait for no other rank."""

WORK: Final = "compute"
"""The operation of own work where kernels are not told apart."""

SMALLEST_KERNEL: Final = 0.02
"""Share of all own work below which a kernel is one of `OTHER_KERNELS`."""

OTHER_KERNELS: Final = "other kernels"

MAX_WORLD: Final = 1 << 20
"""Most ranks of a job."""


@dataclass
class KinetoTrace:
    """One rank's trace in seconds: steps by number and start, collectives, and own work."""

    rank: Rank
    host: str = ""
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    collectives: list[tuple[str, str, int, float, float]] = field(default_factory=list)
    """Operation, group, number or -1, start, duration."""
    work: list[tuple[float, float, str]] = field(default_factory=list)
    """Start, duration, and kernel without the parameters of its template."""
    left_out: Counter[str] = field(default_factory=Counter)
    exchanges: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many sends and receives of a kind were read, by operation and group."""
    world: int = 0
    received: dict[float, float] = field(default_factory=dict)
    """By the start of a collective, how many elements it gives the rank, where its kernel says that."""
    sizes: dict[str, int] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of groups by name, as far as they are known."""


def read_events(paths: Iterable[str], problems: Problems) -> SourceData:
    """Every trace in files and folders; what cannot be used is listed in `problems`; everything else is used.

    Several files of a rank are cycles of one schedule if they have different steps.

    Times of steps and times between collectives cannot be compared, so only the larger group of ranks is used: those
    whose steps were recorded, or those without steps.
    """
    found = SourceData()
    files: dict[Rank, str] = {}
    seen: dict[Rank, set[int]] = {}
    groups: dict[bool, tuple[OperationRows, list[str], list[RankWork]]] = {
        kind: (OperationRows(), [], []) for kind in (True, False)
    }
    for file, data in sources.contents_of(paths, SUFFIXES, problems):
        try:
            trace = trace_of(sources.read_json(data), file, problems)
            steps = {step for step, *_ in trace.steps}
            found.cells[str(file)] = frozenset((str(trace.rank), step) for step in steps or {-1})
            if trace.rank in files and (not steps or not seen[trace.rank] or steps & seen[trace.rank]):
                found.repeated += 1
                raise SourceError(f"rank {trace.rank} was read from {files[trace.rank]} already")
            if not trace.collectives and not trace.work:
                raise SourceError("neither collectives nor kernels are in the trace")
            files.setdefault(trace.rank, str(file))
            seen.setdefault(trace.rank, set()).update(steps)
            found.read.add(trace.rank)
            found.kernels[str(trace.rank)] += len(trace.work)
            found.left_out += trace.left_out
            found.world = max(found.world, trace.world)
            found.sizes |= trace.sizes
            found.members |= trace.members
            rows, names, work = groups[bool(trace.steps)]
            work.append(fill(rows, trace))
            names.append(str(file))
            if trace.host:
                found.hosts[str(trace.rank)] = trace.host
        except SourceError as error:
            problems.add(str(file), str(error))
    stepped = len(groups[True][1]) >= len(groups[False][1])
    found.rows, used, work = groups[stepped]
    add_work(found.rows, work)
    words = "no ProfilerStep is" if stepped else "steps are"
    for name in groups[not stepped][1]:
        problems.add(name, f"left out: {words} in this trace, unlike in {len(used)} others")
    return found


def with_kernel_counts(answer: dict[str, Any], kernels: Mapping[str, int]) -> dict[str, Any]:
    """The answer with how many kernels the ranks of a heavy stage have over others: its rows are sums of these."""
    evidence = answer["evidence"]
    own = {str(rank) for rank in evidence.get("stage_ranks", ())}
    others = [count for rank, count in kernels.items() if rank not in own]
    if not own <= kernels.keys() or not own or not others:
        return answer
    more = float(np.median([kernels[rank] for rank in own])) / max(float(np.median(others)), 1.0)
    return {**answer, "evidence": {**evidence, "operations_over_others": round(more, 4)}}


def trace_of(tree: Any, file: Path, problems: Problems) -> KinetoTrace:
    """One rank's trace. Raises `SourceError` for anything that is not a trace; unreadable events are counted."""
    events = tree.get("traceEvents") if isinstance(tree, dict) else tree
    if not isinstance(events, list):
        raise SourceError("no trace: there is no list of traceEvents")
    info = tree.get("distributedInfo") if isinstance(tree, dict) else None
    info = info if isinstance(info, dict) else {}
    stated = whole(info.get("rank"))
    rank = sources.rank_of(file) if stated is None or stated < 0 else Rank(stated)
    if rank is None:
        raise SourceError("neither distributedInfo.rank nor the file's name has a rank")
    trace = KinetoTrace(rank, text(tree.get("host_name"), 253) if isinstance(tree, dict) else "")
    trace.world = min(max(whole(info.get("world_size")) or 0, 0), MAX_WORLD)
    on_gpu: list[tuple[int, float, float]] = []
    on_host: list[tuple[str, str, int, float, float]] = []
    for place, event in enumerate(events):
        if not isinstance(event, dict):
            problems.add(str(file), f"traceEvents[{place}]: an object was expected")
            continue
        if event.get("ph") != "X":
            continue
        kind, name = event.get("cat"), event.get("name")
        if type(kind) is not str or type(name) is not str:
            continue
        kind = kind.lower()
        if kind not in ("kernel", "user_annotation", "gpu_user_annotation"):
            continue
        start, duration = number(event.get("ts")), number(event.get("dur", 0))
        if start is None or duration is None or not 0 <= duration <= LATEST * 1e6:
            problems.add(str(file), f"traceEvents[{place}]: ts and dur: microseconds were expected")
            continue
        start, duration = start / 1e6, duration / 1e6
        step = _STEP.search(name)
        if kind == "kernel":
            _kernel(trace, name, event.get("args"), start, duration)
        elif step:
            (on_gpu if kind.startswith("gpu") else trace.steps).append((int(step[1]), start, duration))
        elif kind == "user_annotation" and name.startswith("gloo:"):
            on_host.append((text(name[5:], 60), "", -1, start, duration))
    if on_gpu and (trace.work or trace.collectives):
        trace.steps = on_gpu
    if not trace.collectives and not trace.work:
        trace.collectives = on_host
        trace.work = _rest_of_steps(trace.steps, on_host, _computing(events))
    return trace


def _kernel(trace: KinetoTrace, name: str, args: Any, start: float, duration: float) -> None:
    args = args if isinstance(args, dict) else {}
    shape = _NCCL.search(name)
    named = text(args.get("Collective name"), 60)
    if not shape and not named:
        trace.work.append((start, duration, text(re.split(r"[<(]", name.removeprefix("void "))[0], 80) or WORK))
        return
    of_kernel = shape[1] if shape and shape[1] else "collective"
    op = of_kernel if named.lower() in ("", _BATCH) else named
    group = text(args.get("Process Group Name"), 100)
    if group:
        ranks = str(args.get("Process Group Ranks", ""))
        group += f" {ranks[:200]}"
        if group not in trace.sizes:
            trace.sizes[group] = whole(args.get("Group size")) or 0
            if _RANKS.fullmatch(ranks):
                trace.members[group] = tuple(int(rank) for rank in re.findall(r"\d+", ranks))
    seq = whole(args.get("Seq"))
    if op.lower() in _PAIRS:
        if not named or not group:
            # An exchange of all ranks has the same kernel.
            trace.left_out["point to point"] += 1
            return
        group = _between(trace, op.lower(), group, whole(args.get(_PEERS.get(op.lower(), ""))))
        seq = trace.exchanges[op, group]
        trace.exchanges[op, group] += 1
    elements = number(args.get("Out msg nelems"))
    if elements is not None:
        trace.received[start] = elements
    trace.collectives.append((op, group, -1 if seq is None else seq, start, duration))


def _between(trace: KinetoTrace, op: str, group: str, peer: int | None) -> str:
    """The name of what goes from one rank to another within a group, as far as the event tells them."""
    members = trace.members.get(group, ())
    if peer is None or not 0 <= peer < len(members) or trace.rank not in members:
        return group
    source, target = (trace.rank, members[peer]) if op == "send" else (members[peer], trace.rank)
    return f"{group} {source}->{target}"


def _computing(events: list[Any]) -> list[tuple[float, float]]:
    """Start and end of what a processor computes in the threads of steps: the main thread goes on during operations
    that it does not wait for yet."""
    threads = {
        event.get("tid") for event in events if isinstance(event, dict) and _STEP.search(str(event.get("name")))
    }  # fmt: skip
    found = []
    for event in events:
        if isinstance(event, dict) and event.get("cat") == "cpu_op" and event.get("tid") in threads:
            start, duration = number(event.get("ts")), number(event.get("dur"))
            if str(event.get("name")).startswith(_COMPUTES) and start is not None and duration is not None:
                found.append((start / 1e6, (start + duration) / 1e6))
    return found


def _rest_of_steps(
    steps: list[tuple[int, float, float]], collectives: list[tuple[str, str, int, float, float]],
    computing: list[tuple[float, float]],
) -> list[tuple[float, float, str]]:  # fmt: skip
    """By step: its start, and its time outside of collectives, or within them but computing."""
    if not steps or not collectives:
        return []
    spans = [(start, start + duration) for _, start, duration in steps]
    waits = [(start, start + duration) for *_, start, duration in collectives]
    edges = np.unique(np.array([*spans, *waits, *computing]))
    middles = (edges[:-1] + edges[1:]) / 2
    working = _within(middles, spans) & (~_within(middles, waits) | _within(middles, computing))
    firsts = np.isin(edges[:-1], [start for start, _ in spans])
    begins = np.flatnonzero(working & (np.append(True, ~working[:-1]) | firsts))
    ends = np.flatnonzero(working & (np.append(~working[1:], True) | np.append(firsts[1:], True)))
    return [
        (float(edges[begin]), float(edges[end + 1] - edges[begin]), WORK)
        for begin, end in zip(begins, ends, strict=True)
    ]  # fmt: skip


def _within(moments: Floats, spans: list[tuple[float, float]]) -> Bools:
    """Whether each moment is within any of the spans."""
    begun = np.searchsorted(np.sort([start for start, _ in spans]), moments, side="right")
    return np.asarray(begun > np.searchsorted(np.sort([end for _, end in spans]), moments, side="right"))


@dataclass(frozen=True)
class RankWork:
    """One rank's own work by step (-1 without steps) and place among its collectives: when it began, and kernels."""

    rank: str
    begun: dict[tuple[int, int], float]
    """Seconds at which the first kernel began."""
    kernels: dict[tuple[int, int], dict[str, float]]
    """Seconds by kernel, in the order in which they began."""


def fill(rows: OperationRows, trace: KinetoTrace) -> RankWork:
    """Add one rank's collectives to the rows; returns its own work."""
    rank = str(trace.rank)
    begun: dict[int, float] = {}
    for number_of, start, _ in trace.steps:
        begun[number_of] = min(start, begun.get(number_of, np.inf))
    numbers = sorted(begun, key=begun.__getitem__)
    starts = np.array([begun[item] for item in numbers])
    for op, group, seq, start, duration in trace.collectives:
        place = int(np.searchsorted(starts, start, side="right")) - 1
        if len(numbers) and place < 0:
            continue
        step = numbers[place] if len(numbers) else -1
        size = trace.received.get(start, math.nan)
        rows.add(rank, op, start, duration, group=group, seq=seq, step=step, size=size)
    own = RankWork(rank, {}, {})
    work = sorted(trace.work)
    moments = [start for start, *_ in work]
    edges = np.sort([start for *_, start, _ in trace.collectives])
    steps = (np.searchsorted(starts, moments, side="right") - 1).tolist()
    places = (np.searchsorted(edges, moments, side="right") - 1).tolist()
    for (start, spent, kernel), step, place in zip(work, steps, places, strict=True):
        if spent > 0 and (step if len(numbers) else place) >= 0:
            # Without steps, the order of operations tells where steps end: one between two collectives.
            key = (numbers[step] if len(numbers) else -1, place)
            own.begun.setdefault(key, start)
            spans = own.kernels.setdefault(key, {})
            name = kernel if len(numbers) else WORK
            spans[name] = spans.get(name, 0.0) + spent
    return own


def add_work(rows: OperationRows, work: list[RankWork]) -> None:
    """Add the own work of ranks: between two collectives a row for each kernel, one after another.

    Kernels that take little of all the time are one operation.
    """
    total: dict[str, float] = {}
    for own in work:
        for spans in own.kernels.values():
            for kernel, seconds in spans.items():
                total[kernel] = total.get(kernel, 0.0) + seconds
    least = SMALLEST_KERNEL * sum(total.values())
    for own in work:
        for (step, place), spans in own.kernels.items():
            at = own.begun[step, place]
            sums: dict[str, float] = {}
            for kernel, seconds in spans.items():
                name = kernel if total[kernel] >= least else OTHER_KERNELS
                sums[name] = sums.get(name, 0.0) + seconds
            for kernel, seconds in sums.items():
                rows.add(own.rank, kernel, at, seconds, step=step, collective=False)
                at += seconds
