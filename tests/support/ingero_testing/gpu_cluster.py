"""A simulator of ranks that call collectives, sends and receives on GPUs: hosts run ahead, streams run in order.

Every rank has a host, which performs a program, a compute stream, and a stream for each group and for each direction
between two ranks. A host waits only where its queue is full and where its program waits for the GPU. A collective
that needs all members ends soon after the last one has entered it, a broadcast on the root alone before that.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

NEVER = float("inf")
Key = tuple[str, int, int, int]
"""Group, sender and receiver (-1 for a collective), and number."""


@dataclass(frozen=True)
class Group:
    """A process group: its name, what it is for, its ranks."""

    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Compute:
    """A kernel of so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Collective:
    """A call of a collective; the compute stream waits for it if `wait`."""

    group: Group
    op: str
    size: int
    wait: bool = True


@dataclass(frozen=True)
class Transfer:
    """A call of a send to, or a receive from, `peer`; after a receive the compute stream waits."""

    group: Group
    send: bool
    peer: int
    size: int


@dataclass(frozen=True)
class Synchronize:
    """The host waits until its GPU has nothing left to do."""


Instruction = Compute | Collective | Transfer | Synchronize


@dataclass
class Called:
    """One call of a rank, with the times at which things happened to it."""

    key: Key
    what: Collective | Transfer
    at: float
    entered: float = NEVER
    ended: float = NEVER


@dataclass
class Fault:
    """What happens to a rank at its `call`-th call.

    `host`: the host stops before it. `gone`: host and GPU stop before it. `gpu`: the GPU stops while the operation
    transfers; `spares` is the share of the other members on which it ends nevertheless. `kernel`: the GPU stops in a
    kernel after it. `happened` is set when the run comes that far.
    """

    kind: str
    rank: int
    call: int
    spares: float = 1.0
    happened: float = NEVER


@dataclass
class _Task:
    ready: Callable[[], bool]
    seconds: float = 0.0
    call: Called | None = None
    begun: bool = False
    done: bool = False


@dataclass
class _Rank:
    program: list[Instruction]
    at: int = 0
    calls: list[Called] = field(default_factory=list)
    numbers: dict[tuple[str, int, int], int] = field(default_factory=dict)
    streams: dict[object, deque[_Task]] = field(default_factory=dict)
    outstanding: int = 0
    working: int = 0
    host_stopped: bool = False
    gpu_stopped: bool = False
    host_waits: bool = False
    kernel_fault: Fault | None = None


@dataclass
class _Instance:
    """An operation as all members together see it."""

    entered: dict[int, Called] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    lost: bool = False


class Cluster:
    """Runs programs until nothing can go on. `queue`: most calls that a host is ahead of its GPU."""

    def __init__(
        self, programs: list[list[Instruction]], faults: list[Fault], rng: random.Random, queue: int, eager: bool
    ) -> None:
        self.ranks = [_Rank(program) for program in programs]
        self.faults = faults
        self.now = 0.0
        self._rng, self._queue, self._eager = rng, queue, eager
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._instances: dict[Key, _Instance] = {}
        self._faults_of = {(fault.rank, fault.call): fault for fault in faults}

    def run(self) -> None:
        """Run until no event remains."""
        for number in range(len(self.ranks)):
            self._later(self._rng.uniform(0, 1e-4), lambda number=number: self._host(number))  # type: ignore[misc]
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, action))

    def _host(self, number: int) -> None:
        """Perform the next instruction of a rank's host."""
        rank = self.ranks[number]
        if rank.host_stopped or rank.at >= len(rank.program):
            return
        what = rank.program[rank.at]
        if isinstance(what, Synchronize) and rank.working:
            rank.host_waits = True
            return
        if isinstance(what, Collective | Transfer):
            if rank.outstanding >= self._queue:
                rank.host_waits = True
                return
            fault = self._faults_of.get((number, len(rank.calls)))
            if fault is not None and fault.happened == NEVER and self._strikes(rank, fault):
                return
            self._call(number, what)
        elif isinstance(what, Compute):
            self._put(number, "compute", _Task(lambda: True, what.seconds * self._rng.uniform(0.95, 1.1)))
        rank.at += 1
        self._later(self._rng.uniform(1e-5, 4e-5), lambda: self._host(number))

    def _strikes(self, rank: _Rank, fault: Fault) -> bool:
        """Let a fault happen; whether the host stops."""
        if fault.kind == "kernel":
            rank.kernel_fault = fault
        if fault.kind not in ("host", "gone"):
            return False
        fault.happened = self.now
        rank.host_stopped = True
        rank.gpu_stopped |= fault.kind == "gone"
        return True

    def _call(self, number: int, what: Collective | Transfer) -> None:
        rank = self.ranks[number]
        source, target = -1, -1
        if isinstance(what, Transfer):
            source, target = (number, what.peer) if what.send else (what.peer, number)
        place = (what.group.name, source, target)
        rank.numbers[place] = rank.numbers.get(place, 0) + 1
        call = Called((*place, rank.numbers[place]), what, self.now)
        rank.calls.append(call)
        rank.outstanding += 1
        # The kernel waits for what the compute stream has to do so far; the compute stream for the result.
        compute = rank.streams.get("compute")
        before = compute[-1] if compute else None
        self._put(number, place, _Task(lambda: before is None or before.done, call=call))
        if what.wait if isinstance(what, Collective) else not what.send:
            self._put(number, "compute", _Task(lambda: call.ended < NEVER))

    def _put(self, number: int, stream: object, task: _Task) -> None:
        rank = self.ranks[number]
        rank.working += 1
        tasks = rank.streams.setdefault(stream, deque())
        tasks.append(task)
        # Only the new task can start: what else could start has done so before.
        if len(tasks) == 1 and not rank.gpu_stopped and task.ready() and self._begin(number, tasks):
            self._advance(number)

    def _advance(self, number: int) -> None:
        """Start every task of a rank that can start."""
        rank = self.ranks[number]
        moved = True
        while moved and not rank.gpu_stopped:
            moved = False
            for tasks in rank.streams.values():
                if tasks and not tasks[0].begun and tasks[0].ready():
                    moved |= self._begin(number, tasks)

    def _begin(self, number: int, tasks: deque[_Task]) -> bool:
        """Start a task; whether it ended at once."""
        rank, task = self.ranks[number], tasks[0]
        task.begun = True
        if task.call is not None:
            task.call.entered = self.now
            self._enter(number, task.call)
            return False
        if not task.seconds:
            task.done = True
            tasks.popleft()
            rank.working -= 1
            return True
        if rank.kernel_fault is not None:
            rank.kernel_fault.happened, rank.gpu_stopped = self.now, True
            return False
        self._later(task.seconds, lambda: self._end(number, tasks))
        return False

    def _end(self, number: int, tasks: deque[_Task]) -> None:
        rank = self.ranks[number]
        if rank.gpu_stopped:
            return
        task = tasks.popleft()
        task.done = True
        rank.working -= 1
        if task.call is not None:
            task.call.ended = self.now
            rank.outstanding -= 1
        self._advance(number)
        if rank.host_waits:
            rank.host_waits = False
            self._later(1e-5, lambda: self._host(number))

    def _enter(self, number: int, call: Called) -> None:
        what = call.what
        instance = self._instances.setdefault(call.key, _Instance())
        instance.entered[number] = call
        seconds = 2e-5 + what.size * 1e-9
        first = None
        if isinstance(what, Transfer):
            members: tuple[int, ...] = (call.key[1], call.key[2])
            first = call.key[1] if self._eager else None
        else:
            members = what.group.ranks
            first = members[0] if what.op == "broadcast" else None
        if first is not None:
            ready = set(instance.entered) if first in instance.entered else set()
        elif len(instance.entered) < len(members):
            return
        else:
            ready = set(instance.entered)
        ready -= instance.released
        calls = {(one.what.op if isinstance(one.what, Collective) else "", one.what.size)
                 for one in instance.entered.values()}  # fmt: skip
        # A rank that stopped within the operation sends nothing any more.
        dead = first is None and any(self.ranks[one].gpu_stopped for one in instance.entered)
        if not ready or instance.lost or dead or (len(calls) > 1 and len(instance.entered) > 1):
            return
        spared = self._gpu_faults(instance, members, ready)
        for one in sorted(ready):
            instance.released.add(one)
            if one in spared:
                tasks = self.ranks[one].streams[call.key[:3]]
                self._later(
                    seconds * self._rng.uniform(1, 1.5), lambda one=one, tasks=tasks: self._end(one, tasks)  # type: ignore[misc]
                )  # fmt: skip

    def _gpu_faults(self, instance: _Instance, members: tuple[int, ...], ready: set[int]) -> set[int]:
        """Stop GPUs that fail within this operation; the ranks on which it ends nevertheless."""
        spared = set(ready)
        for number in sorted(ready):
            rank = self.ranks[number]
            fault = next((one for one in self.faults if one.kind == "gpu" and one.rank == number), None)
            if fault is None or fault.happened < NEVER or rank.calls.index(instance.entered[number]) < fault.call:
                continue
            fault.happened, rank.gpu_stopped = self.now, True
            others = [one for one in spared if one != number]
            spared = set(self._rng.sample(others, round(fault.spares * len(others))))
            instance.lost |= fault.spares < 1
        return spared
