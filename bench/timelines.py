"""Seeded operation timelines of synchronised jobs, as a tracer would record them on each rank's own clock."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ingero_detect.ranks.timeline import Timeline

CLOCKS = 10.0
"""Largest clock offset of a rank, seconds."""


@dataclass
class Table:
    """Rows of a timeline by column, ready for a CSV file."""

    columns: dict[str, list[npt.NDArray[np.generic]]] = field(default_factory=dict)
    _single: dict[str, list[Any]] = field(default_factory=dict)
    """The last rows, which were added one by one: as an array each, they would take most of a simulation's time."""

    def add(self, **values: npt.ArrayLike) -> None:
        """Add rows; a single value applies to all of them."""
        if not any(isinstance(value, np.ndarray | list | tuple) for value in values.values()):
            for name, value in values.items():
                self._single.setdefault(name, []).append(value)
            return
        self._join()
        arrays = np.broadcast_arrays(*(np.asarray(value) for value in values.values()))
        for name, array in zip(values, arrays, strict=True):
            self.columns.setdefault(name, []).append(array.ravel())

    def _join(self) -> None:
        for name, cells in self._single.items():
            self.columns.setdefault(name, []).append(np.array(cells))
        self._single = {}

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The complete columns."""
        self._join()
        return {name: np.concatenate(parts) for name, parts in self.columns.items()}

    def csv(self) -> str:
        """The rows as text."""
        arrays = self.arrays()
        lines = [",".join(arrays)]
        lines += [",".join(map(str, row)) for row in zip(*(array.tolist() for array in arrays.values()), strict=True)]
        return "\n".join(lines) + "\n"


def as_timeline(table: Table) -> Timeline:
    """The rows as input of the diagnosis, without a file in between."""
    columns = table.arrays()
    rank, step = columns["rank"].astype(np.int64), columns["step"].astype(np.int64)
    _, op = np.unique(columns["op"], return_inverse=True)
    collective = columns["kind"] == "collective"
    _, group = np.unique(columns["group"], return_inverse=True)
    _, meeting = np.unique(np.stack([columns["group"], columns["seq"].astype(str)]), axis=1, return_inverse=True)
    unknown = np.full(len(rank), -1, np.int64)
    return Timeline(
        ranks=int(rank.max()) + 1, steps=int(step.max()) + 1, rank=rank, step=step, op=op, collective=collective,
        start=columns["start"].astype(float), duration=columns["duration"].astype(float),
        instance=np.where(collective, meeting.ravel(), -1),
        stage=columns["stage"].astype(np.int64) if "stage" in columns else unknown,
        data_parallel=columns["data_parallel"].astype(np.int64) if "data_parallel" in columns else unknown,
        work=columns["work"].astype(float) if "work" in columns else None, group=np.where(collective, group, -1),
    )  # fmt: skip


def ring(
    rng: np.random.Generator, ranks: int, steps: int = 50, late: float = 0.05, jitter: float = 0.02, culprit: int = 0
) -> Table:
    """A barrier-synchronised ring: compute, then one collective that ends for all when the last has arrived.

    `late` and `jitter` are shares of a step of one second.
    """
    compute = 0.8 + jitter * rng.normal(size=(steps, ranks))
    compute[:, culprit] += late
    clock = rng.uniform(-CLOCKS, CLOCKS, ranks)
    table, begin = Table(), 100.0
    for step in range(steps):
        own = np.maximum(compute[step], 0.01)
        end = begin + own.max() + 0.2
        rank = np.arange(ranks)
        table.add(rank=rank, op="forward-backward", kind="compute", start=begin + clock, duration=own, step=step,
                  group="", seq="")  # fmt: skip
        table.add(rank=rank, op="all-reduce", kind="collective", start=begin + own + clock,
                  duration=end - begin - own, step=step, group="dp", seq=step)  # fmt: skip
        begin = end
    return table


def pipeline(
    rng: np.random.Generator, stages: int = 4, replicas: int = 4, steps: int = 50, heavy: float = 0.4,
    jitter: float = 0.02, long_share: float = 0.0, culprit: int = -1, late: float = 0.0,
) -> Table:  # fmt: skip
    """Stages by replicas; the last stage is `heavy` longer; a share of (step, replica) has sequences twice as long.

    A step: every rank computes forward and backward, replicas then meet by stage; the slowest stage sets the pace of
    its replica. Rank = stage x replicas + replica.
    """
    table, begin = Table(), 50.0
    ranks = stages * replicas
    stage, replica = np.divmod(np.arange(ranks), replicas)
    clock = rng.uniform(-CLOCKS, CLOCKS, ranks)
    for step in range(steps):
        work = np.where(stage == stages - 1, 1 + heavy, 1.0) * 0.3
        longer = np.where(rng.random(replicas) < long_share, 2.0, 1.0)[replica]
        forward = work * longer * (1 + jitter * rng.normal(size=ranks))
        backward = 2 * work * longer * (1 + jitter * rng.normal(size=ranks))
        if culprit >= 0:
            forward[culprit] *= 1 + late
            backward[culprit] *= 1 + late
        pace = np.array([(forward + backward)[replica == one].max() for one in range(replicas)])[replica]
        end = begin + pace.max() + 0.1
        shared: dict[str, Any] = {"rank": np.arange(ranks), "step": step, "stage": stage, "data_parallel": replica}
        table.add(op="forward", kind="compute", start=begin + clock, duration=forward, group="", seq="", **shared)
        table.add(op="backward", kind="compute", start=begin + forward + clock, duration=backward, group="", seq="",
                  **shared)  # fmt: skip
        table.add(op="grads-sync", kind="collective", start=begin + pace + clock, duration=end - begin - pace,
                  group=np.char.add("stage", stage.astype(str)), seq=step, **shared)  # fmt: skip
        begin = end
    return table


def varying(
    rng: np.random.Generator, ranks: int = 8, steps: int = 50, late: float = 0.0, jitter: float = 0.01,
    culprit: int = 0, spread: float = 0.3, memory: float = 0.0, quadratic: float = 0.0, skew: float = 0.0,
) -> Table:  # fmt: skip
    """A ring whose ranks get sequences of different length in each step; the amount of work is given.

    Lengths are lognormal with deviation `spread`. `memory` is the correlation of a rank's lengths from step to step.
    The last rank has `skew` more. The time grows with the length, and with its square where `quadratic` is not 0. The
    culprit computes `late` longer.
    """
    clock, begin, table = rng.uniform(-CLOCKS, CLOCKS, ranks), 100.0, Table()
    rank, state = np.arange(ranks), rng.normal(size=ranks)
    for step in range(steps):
        state = memory * state + np.sqrt(1 - memory**2) * rng.normal(size=ranks)
        work = np.exp(spread * state) * np.where(rank == ranks - 1, 1 + skew, 1.0)
        own = (0.1 + 0.7 * work + quadratic * work**2) * (1 + jitter * rng.normal(size=ranks))
        own *= np.where(rank == culprit, 1 + late, 1.0)
        end = begin + own.max() + 0.2
        table.add(rank=rank, op="forward-backward", kind="compute", start=begin + clock, duration=own, step=step,
                  group="", seq="", work=np.round(4096 * work))  # fmt: skip
        table.add(rank=rank, op="all-reduce", kind="collective", start=begin + own + clock,
                  duration=end - begin - own, step=step, group="dp", seq=step, work=np.nan)  # fmt: skip
        begin = end
    return table


def grid(
    rng: np.random.Generator, tensor: int = 8, data: int = 8, steps: int = 50, late: float = 0.05,
    jitter: float = 0.01, culprit: int = 0,
) -> Table:  # fmt: skip
    """Only the waits of a job whose ranks meet first in tensor groups, then in data groups, in each step of a second.

    A delay in a tensor group reaches all data groups of its ranks: all of them arrive late there, only one caused it.
    """
    table, ranks = Table(), tensor * data
    clock, now = rng.uniform(-CLOCKS, CLOCKS, ranks), np.zeros(ranks)
    groups = [(f"tensor{place}", np.arange(tensor) + tensor * place) for place in range(data)]
    groups += [(f"data{place}", np.arange(place, ranks, tensor)) for place in range(tensor)]
    for step in range(steps):
        now += rng.normal(1.0, jitter, ranks) + late * (np.arange(ranks) == culprit)
        for name, members in groups:
            waited = now[members].max() + 0.01 - now[members]
            table.add(
                rank=members, op="reduce", kind="collective", start=now[members] + clock[members], duration=waited,
                step=step, group=name, seq=step,
            )  # fmt: skip
            now[members] += waited
    return table


def layered(
    rng: np.random.Generator, tensor: int, data: int, steps: int = 40, layers: int = 4, jitter: float = 0.015,
    idle: float = 0.0, culprit: int | tuple[int, ...] = -1, slower: float = 0.0, warm: int = 0,
    stall: tuple[int, ...] = (),
) -> Table:  # fmt: skip
    """Ranks meet in tensor groups after each layer; data groups exchange what is ready while they compute on.

    A data group's exchanges queue up behind one another; a step ends with the last one. Every culprit stands
    idle for `idle` seconds before each step, for 0.1 s in the middle of steps `stall`, and computes `slower`. The
    first `warm` steps are longer on all ranks. Without a tensor group (`tensor` is 1) it is plain data parallelism. A
    step takes about 0.5 s.
    """
    table, ranks = Table(), tensor * data
    clock, now, rank = rng.uniform(-CLOCKS, CLOCKS, ranks), np.full(ranks, 50.0), np.arange(ranks)
    for step in range(steps):
        now = now + idle * np.isin(rank, culprit)
        ready = np.zeros(ranks)
        for layer in range(layers):
            now = now + 0.1 * np.isin(rank, culprit) * (step in stall and layer == layers // 2)
            longer = 4 / (step + 1) if step < warm else 1
            own = (
                longer * 0.4 / layers * (1 + jitter * rng.normal(size=ranks)) * (1 + slower * np.isin(rank, culprit))
            )
            table.add(rank=rank, op="layer", kind="compute", start=now + clock, duration=own, step=step, group="",
                      seq="")  # fmt: skip
            now = now + own
            for axis, size in (("tensor", tensor), ("data", data)):
                group = rank // tensor if axis == "tensor" else rank % tensor
                begin = now if axis == "tensor" else np.maximum(now, ready)
                end = np.array([begin[group == one].max() for one in group]) + (0.002 if axis == "tensor" else 0.02)
                if size > 1:
                    table.add(rank=rank, op="all-reduce", kind="collective", start=begin + clock,
                              duration=end - begin, step=step, group=np.char.add(axis, group.astype(str)),
                              seq=step * layers + layer)  # fmt: skip
                    now, ready = (end, ready) if axis == "tensor" else (now, end)
        now = np.maximum(now, ready)
        table.add(rank=rank, op="optimizer", kind="compute", start=now + clock, duration=0.01, step=step, group="",
                  seq="")  # fmt: skip
        now = now + 0.01
    return table


def _order(stage: int, stages: int, parts: int) -> list[tuple[bool, int]]:
    """The 1F1B schedule of a stage: the parts of a batch in order, each with its direction; `True` is backward."""
    ahead = min(stages - 1 - stage, parts)
    order = [(False, part) for part in range(ahead)]
    for part in range(parts):
        order += [(False, ahead + part)] * (ahead + part < parts) + [(True, part)]
    return order


def interleaved(
    rng: np.random.Generator, stages: int = 4, replicas: int = 4, parts: int = 8, steps: int = 30, heavy: float = 0.0,
    jitter: float = 0.02, culprit: int | tuple[int, ...] = -1, late: float = 0.0, stall: float = 0.0, since: int = 0,
    norm: bool = False,
) -> Table:  # fmt: skip
    """Stages by replicas that hand each other parts of a batch, one forward and one backward in turn (1F1B).

    From step `since` on every culprit computes `late` longer, or pauses for `stall` seconds before every part on its
    host, which no compute time shows. Receivers wait for senders, never the reverse, so every rank has bubbles. With
    `norm` all ranks meet at the end of a step.
    """
    table, begin = Table(), 50.0
    clock = rng.uniform(-CLOCKS, CLOCKS, stages * replicas)
    sent: dict[str, int] = {}
    for step in range(steps):
        ends = np.full((stages, replicas), begin)
        for replica in range(replicas):
            orders = [_order(stage, stages, parts) for stage in range(stages)]
            done: dict[tuple[bool, int, int], float] = {}
            stage = 0
            while any(orders):
                if not orders[stage]:
                    stage = (stage + 1) % stages
                    continue
                back, part = orders[stage][0]
                source = stage + 1 if back else stage - 1
                if 0 <= source < stages and (back, source, part) not in done:
                    stage = (stage + 1) % stages
                    continue
                orders[stage].pop(0)
                rank, now = stage * replicas + replica, ends[stage, replica]
                shared = {"step": step, "data_parallel": replica}
                if 0 <= source < stages:
                    group = f"{'back' if back else 'forth'}{min(stage, source)}-{replica}"
                    there, seq = done[back, source, part] + 0.002, sent.get(group, 0)
                    sent[group] = seq + 1
                    sender = source * replicas + replica
                    table.add(rank=sender, op="send", kind="collective", duration=0.002, group=group, seq=seq,
                              start=there - 0.002 + clock[sender], stage=source, **shared)  # fmt: skip
                    table.add(rank=rank, op="recv", kind="collective", duration=max(there - now, 1e-4), group=group,
                              seq=seq, start=now + clock[rank], stage=stage, **shared)  # fmt: skip
                    now = max(there, now + 1e-4)
                guilty = step >= since and rank in np.atleast_1d(culprit)
                now += stall * guilty
                work = (0.1 if back else 0.05) * (1 + heavy * (stage == stages - 1)) * (1 + late * guilty)
                work *= 1 + jitter * rng.normal()
                table.add(rank=rank, op="backward" if back else "forward", kind="compute", start=now + clock[rank],
                          duration=work, group="", seq="", stage=stage, **shared)  # fmt: skip
                ends[stage, replica] = done[back, stage, part] = now + work
        for stage in range(stages):
            ranks = stage * replicas + np.arange(replicas)
            end = ends[stage].max() + 0.05
            table.add(rank=ranks, op="grads-sync", kind="collective", start=ends[stage] + clock[ranks],
                      duration=end - ends[stage], group=f"stage{stage}", seq=step, step=step, stage=stage,
                      data_parallel=np.arange(replicas))  # fmt: skip
            ends[stage] = end
        begin = float(ends.max()) + 0.005
        if norm:
            ranks = np.arange(stages * replicas)
            table.add(rank=ranks, op="norm", kind="collective", start=ends.ravel() + clock,
                      duration=begin - ends.ravel(), group="world", seq=step, step=step, stage=ranks // replicas,
                      data_parallel=ranks % replicas)  # fmt: skip
    return table
