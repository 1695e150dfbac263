"""The detector's memory: columns by node and by group, bounded, kept in a snapshot; silent nodes are removed."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey, node_key
from ingero_detect.grouped import Ints
from ingero_detect.nodes.codes import LEARNING, STATES
from ingero_detect.nodes.cohorts import CohortKey
from ingero_detect.nodes.false_alarm_budget import BINS, STEP_BINS

RUNS: Final = 16
"""Histogram of the lengths of large losses that ended by themselves, ticks; the last bin holds longer ones."""

STEPS_KEPT: Final = 5
STEP_BITS: Final = 6
NO_STEPS: Final = (1 << STEPS_KEPT * STEP_BITS) - 1
"""Number of steps in `last_steps`, bits of each, and all places empty."""

NODE_COLUMNS: Final[dict[str, tuple[Any, Any]]] = {
    "used": (np.bool_, False), "state": (np.uint8, LEARNING), "code": (np.uint8, 0), "home": (np.int32, -1),
    "group": (np.int32, -1), "was_active": (np.bool_, False), "learned": (np.bool_, False), "filled": (np.int16, 0),
    "sofar": (np.float64, 0.0), "count": (np.int32, 0), "relearn": (np.int16, 0), "grace": (np.int16, 0),
    "absent": (np.int32, 0), "seen": (np.float64, 0.0), "baseline": (np.float64, 0.0), "own": (np.float32, 0.0),
    "previous": (np.float32, np.nan), "slow": (np.float32, 0.0), "fast": (np.float32, 0.0),
    "below": (np.float32, 0.0), "slow_peak": (np.float32, 0.0), "fast_peak": (np.float32, 0.0),
    "onset": (np.float64, 0.0), "below_onset": (np.float64, 0.0), "shortfall": (np.float32, 0.0),
    "spell": (np.int32, 0), "run": (np.int16, 0), "steep": (np.int16, 0), "lower": (np.int16, 0),
    "idle_run": (np.int16, 0), "dips": (np.float32, 0.0), "usual_dips": (np.float32, 0.0), "dip_ticks": (np.int16, 0),
    "by_dips": (np.bool_, False), "flaps": (np.float32, 0.0), "last_steps": (np.uint32, NO_STEPS),
    "kind": (np.uint8, 0), "axis": (np.uint8, 0), "since": (np.float64, 0.0), "detected": (np.float64, 0.0),
    "loss": (np.float32, 0.0), "well": (np.float32, 0.0), "well_since": (np.float64, 0.0), "hold": (np.int16, 0),
    "reached": (np.float16, 0.0), "echo": (np.float32, np.nan), "value": (np.float64, np.nan),
    "expected": (np.float32, np.nan), "residual": (np.float32, np.nan), "scale": (np.float32, np.nan),
    "block": (np.float16, 0.0), "last_block": (np.float16, np.nan), "block_before": (np.float16, np.nan),
    "rise": (np.float16, 0.0),
}  # fmt: skip
"""Type and initial value of the columns by node.

`sofar`: mean rate of the warm-up so far; in a new phase of the job, for `relearn` more ticks, what it adds to the
baseline, as learnt in `filled` ticks. `slow`, `fast`, `below`: the sequential test against own history, its mirror,
and the test against peers; `shortfall` over `spell` ticks since `onset`; `well`: the test of recovery; `run`: ticks
with more than half of the rate gone; `steep`: ticks in a row with a large loss. `dips`: share of the node's work
that short losses take, for `dip_ticks`, and usually take; `by_dips`: accused because of them; `flaps`: short or
recurring accusations and relapses, halved every four hours. `last_steps`: bins of the last five steps that were
counted, and of an accused node those that no longer are. `block`, `last_block`, `block_before`: sums of deviations
over the present block of ticks, and over the two before it. `rise`: by what the node lately rose above its baseline
from tick to tick, log units.
"""

GROUP_COLUMNS: Final[dict[str, tuple[Any, Any]]] = {
    "level": (np.float64, np.nan), "scale": (np.float64, np.nan), "recent": (np.float64, np.nan),
    "offsets": (np.float64, np.nan), "ticks": (np.int64, 0), "lagged": (np.float64, 0.0),
    "squares": (np.float64, 0.0), "moved": (np.int32, 0), "shift": (np.float64, 0.0), "slow_since": (np.float64, 0.0),
    "hours": (np.float64, 0.0), "alarm": (np.float64, np.nan), "confirm": (np.int16, 2), "size": (np.int64, 0),
    "unexamined": (np.bool_, False), "unit": (np.float64, np.nan), "counted": (np.float32, 0.0),
    "lenience": (np.float64, np.nan), "learnt": (np.float64, np.nan),
    "back": (np.bool_, True), "trend": (np.float64, 0.0), "usual_level": (np.float64, np.nan),
    "growth": (np.float32, 0.0), "block_count": (np.float64, 0.0), "block_near": (np.float64, 0.0),
    "block_far": (np.float64, 0.0), "block_spread": (np.float64, 0.0), "steep_share": (np.float64, 0.0),
}  # fmt: skip
"""Type and initial value of the columns by group.

`unexamined`: a node began to be below its peers, and whether it is alone there has not been looked at yet.
`unit`: rate of one event, where rates are small counts, which `counted` says from 0 to 1. `lenience`: the loss that
adds no evidence, in standard deviations, while the alarm level was learnt. `learnt`: the level at which the
baselines were learnt; `back`: whether the job is there, so that they hold in spite of `relearn`. `trend`: by what
the level changes from tick to tick; `usual_level`: its mean over the time that baselines are learnt from.
`growth`: 1 when the noise of all nodes has just grown, and then fading for hours. `block_count`: blocks of ticks
that were compared with the last one and the one before; `block_near`, `block_far`: squares of what
they differ from these; `block_spread`: squares of their medians. `steep_share`: share of the ticks of
nodes that large losses took lately which ended by themselves.
"""

HISTOGRAMS: Final = {
    "peaks_slow": BINS, "peaks_fast": BINS, "steps_slow": STEP_BINS, "steps_fast": STEP_BINS, "runs": RUNS,
    "chance_runs": RUNS,
}  # fmt: skip
"""Bins of the histograms by group: peaks of the test on one side, what one tick adds to it, lengths of large
losses that ended by themselves, and how many would have lasted so long or longer if every tick had been chance."""

VERSION: Final = 11
"""Version of the snapshot format."""

_ADDED: Final[dict[int, tuple[str, ...]]] = {
    4: ("node_steep",),
    5: ("node_dips", "node_usual_dips", "node_dip_ticks", "node_by_dips", "node_flaps", "group_recent"),
    6: ("group_unexamined", "group_unit", "group_counted"),
    7: ("group_lenience",),
    8: ("node_last_steps", "group_learnt", "group_back"),
    9: (
        "node_block", "node_last_block", "node_block_before", "group_block_count", "group_block_near",
        "group_block_far", "group_block_spread",
    ),
    10: ("group_trend", "group_usual_level", "group_growth"),
    11: ("node_rise", "group_steep_share", "chance_runs"),
}  # fmt: skip
"""Columns that a version added: in a snapshot of an earlier one they have their initial values.

Versions before the first of these are not read.
"""


_PHASES_APART: Final = 8
"""Version from which `sofar` has a meaning after the warm-up."""

_EXPECTED_SINGLE: Final = 9
"""Version from which `expected` is kept in single precision."""

_REACHED_HALF: Final = 11
"""Version from which `reached` is kept in half precision."""


class SnapshotError(ValueError):
    """A snapshot that cannot be used; the text says why."""


class ColumnStore:
    """The columns. Nodes keep their slot while they are remembered; so do groups. Not thread-safe."""

    def __init__(self, warmup: int, max_nodes: int, max_cohorts: int) -> None:
        self.warmup, self.max_nodes, self.max_cohorts = warmup, max_nodes, max_cohorts
        self.names: list[NodeKey] = []
        self.homes: list[CohortKey] = []
        self.groups: list[CohortKey] = []
        self.dropped_nodes = 0
        self.dropped_cohorts = 0
        self.forgotten = 0
        self._slots: dict[NodeKey, int] = {}
        self._free: list[int] = []
        self._homes: dict[CohortKey, int] = {}
        self._groups: dict[CohortKey, int] = {}
        self._columns = {name: np.full(64, start, dtype) for name, (dtype, start) in NODE_COLUMNS.items()}
        self._window = np.zeros((64, warmup), np.float16)
        self._group_columns = {name: np.full(8, start, dtype) for name, (dtype, start) in GROUP_COLUMNS.items()}
        self._group_columns |= {name: np.zeros((8, bins), np.float32) for name, bins in HISTOGRAMS.items()}
        self._roster: list[NodeKey] | None = None
        self._last_names: Sequence[NodeKey] = ()
        self._last_slots: Ints = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._slots)

    def roster(self) -> list[NodeKey]:
        """The names by slot, read-only; the same list until a node is added."""
        if self._roster is None:
            self._roster = list(self.names)
        return self._roster

    def node(self, name: str) -> npt.NDArray[Any]:
        """One column by slot, in place."""
        return self._columns[name][: len(self.names)]

    def end_of_learning(self) -> None:
        """Free the window's memory; called when no node learns any more."""
        self._window = np.zeros_like(self._window)

    def group(self, name: str) -> npt.NDArray[Any]:
        """One column or histogram by group, in place."""
        return self._group_columns[name][: len(self.groups)]

    def window(self) -> npt.NDArray[np.float16]:
        """Rates of learning nodes, log units with a precision of 1/2000 of themselves, (slots, warm-up ticks)."""
        return self._window[: len(self.names)]

    def slot(self, node: NodeKey) -> int | None:
        """The slot of a node, if it is remembered."""
        return self._slots.get(node)

    def slots(self, names: Sequence[NodeKey]) -> Ints:
        """The slot of every node; new nodes are added; -1 if the store is full."""
        if names == self._last_names:
            return self._last_slots
        entered: list[int] = []
        slots = np.fromiter((self._slot(name, entered) for name in names), np.int64, len(names))
        if entered:
            fresh = np.array(entered, np.int64)
            self.clear(fresh)
            self._columns["used"][fresh] = True
        if not (slots < 0).any():
            self._last_names, self._last_slots = names, slots
        return slots

    def _slot(self, node: NodeKey, entered: list[int]) -> int:
        slot = self._slots.get(node)
        if slot is not None:
            return slot
        if len(self._slots) >= self.max_nodes:
            self.dropped_nodes += 1
            return -1
        if self._free:
            slot = self._free.pop()
            self.names[slot] = node
        else:
            slot = len(self.names)
            self.names.append(node)
            if slot == len(self._window):
                self._columns = {name: _longer(column) for name, column in self._columns.items()}
                self._window = _longer(self._window)
        entered.append(slot)
        self._roster = None
        self._slots[node] = slot
        return slot

    def clear(self, slots: Ints) -> None:
        """Reset these slots to their defaults, except for the names."""
        for name, (_, start) in NODE_COLUMNS.items():
            if name != "used":
                self._columns[name][slots] = start

    def home(self, key: CohortKey) -> int:
        """The number of a cohort, which is added if it is new; -1 if the store is full."""
        return self._number(key, self._homes, self.homes)

    def group_number(self, key: CohortKey) -> int:
        """The number of a group, which is added if it is new; -1 if the store is full."""
        known = len(self.groups)
        number = self._number(key, self._groups, self.groups)
        if number == known:
            if number >= len(self._group_columns["runs"]):
                self._group_columns = {name: _longer(column) for name, column in self._group_columns.items()}
            for name, column in self._group_columns.items():
                column[number] = 0 if name in HISTOGRAMS else GROUP_COLUMNS[name][1]
        return number

    def _number(self, key: CohortKey, numbers: dict[CohortKey, int], keys: list[CohortKey]) -> int:
        number = numbers.get(key)
        if number is None:
            if len(keys) >= self.max_cohorts:
                self.dropped_cohorts += 1
                return -1
            number = numbers[key] = len(keys)
            keys.append(key)
        return number

    def forget(self, before: float) -> list[NodeKey]:
        """Free the slots of nodes not seen since `before`, then unused cohorts and groups. Returns the nodes."""
        gone = np.flatnonzero(self.node("used") & (self.node("seen") < before))
        names = self._release(gone)
        self.forgotten += len(names)
        if names:
            self._last_names, self._last_slots = (), np.zeros(0, np.int64)
        self._compact()
        return names

    def _release(self, gone: Ints) -> list[NodeKey]:
        """Free these slots; returns the names of their nodes."""
        names = [self.names[slot] for slot in gone.tolist()]
        for slot, name in zip(gone.tolist(), names, strict=True):
            del self._slots[name]
            self._free.append(slot)
        self.clear(gone)
        self._columns["used"][gone] = False
        return names

    def _compact(self) -> None:
        used = self.node("used")
        for column, keys, numbers in (("home", self.homes, self._homes), ("group", self.groups, self._groups)):
            kept = np.unique(self.node(column)[used & (self.node(column) >= 0)])
            if len(keys) <= 64 or len(keys) <= 2 * len(kept):
                continue
            values = self.node(column)
            values[:] = np.where(values >= 0, np.searchsorted(kept, values), -1)
            keys[:] = [keys[number] for number in kept.tolist()]
            numbers.clear()
            numbers.update({key: number for number, key in enumerate(keys)})
            if column == "group":
                for table in self._group_columns.values():
                    table[: len(kept)] = table[kept]

    def snapshot(self, facts: Mapping[str, Any]) -> bytes:
        """All columns and the caller's `facts` as a NumPy archive without pickles."""
        names = {
            "version": VERSION, "warmup": self.warmup, "facts": dict(facts), "names": self.names, "free": self._free,
            "homes": self.homes, "groups": self.groups,
        }  # fmt: skip
        arrays = {f"node_{name}": self.node(name) for name in NODE_COLUMNS}
        arrays |= {_archived(name): self.group(name) for name in self._group_columns} | {"window": self.window()}
        arrays["names"] = np.frombuffer(json.dumps(names, separators=(",", ":")).encode(), np.uint8)
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()

    def restore(self, data: bytes) -> dict[str, Any]:
        """Load a snapshot; returns the facts. `SnapshotError` if it is damaged or of another shape.

        Of more than `max_nodes` nodes those seen last are kept; the others are counted as dropped.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = json.loads(arrays["names"].tobytes())
            version = about["version"]
            if not min(_ADDED) - 1 <= version <= VERSION or about["warmup"] != self.warmup:
                raise SnapshotError("the snapshot is of another version or of another warm-up")
            names = [node_key(str(cluster), str(node)) for cluster, node in about["names"]]
            homes, groups = ([tuple(map(str, key)) for key in about[part]] for part in ("homes", "groups"))
            for column in (column for since, added in _ADDED.items() if since > version for column in added):
                if column in HISTOGRAMS:
                    arrays[column] = np.zeros((len(groups), HISTOGRAMS[column]), np.float32)
                    continue
                kind, _, name = column.partition("_")
                dtype, start = (NODE_COLUMNS if kind == "node" else GROUP_COLUMNS)[name]
                arrays[column] = np.full(len(names if kind == "node" else groups), start, dtype)
            if version < _PHASES_APART:
                arrays["node_sofar"] = np.where(arrays["node_learned"], 0.0, arrays["node_sofar"])
            if version < _EXPECTED_SINGLE:
                arrays["node_expected"] = arrays["node_expected"].astype(np.float32)
            if version < _REACHED_HALF:
                arrays["node_reached"] = arrays["node_reached"].astype(np.float16)
            free = [int(slot) for slot in about["free"]]
            columns = {
                name: _typed(arrays[f"node_{name}"], column.dtype, (len(names),))
                for name, column in self._columns.items()
            }
            by_group = {
                name: _typed(arrays[_archived(name)], column.dtype, (len(groups), *column.shape[1:]))
                for name, column in self._group_columns.items()
            }
            window = _typed(arrays["window"], np.float16, (len(names), self.warmup))
            facts = dict(about["facts"])
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(f"the snapshot is damaged: {type(error).__name__}") from error
        free_slots = set(free)
        fits = (
            all(0 <= slot < len(names) for slot in free_slots)
            and (columns["state"] < len(STATES)).all()
            and (columns["home"] < len(homes)).all()
            and (columns["group"] < len(groups)).all()
            and (columns["filled"] <= self.warmup).all()
        )
        if not fits:
            raise SnapshotError("the snapshot's parts do not fit one another")
        self.names, self.homes, self.groups, self._free, self._roster = names, homes, groups, free, None
        self._slots = {name: slot for slot, name in enumerate(names) if slot not in free_slots}
        self._homes = {key: number for number, key in enumerate(homes)}
        self._groups = {key: number for number, key in enumerate(groups)}
        self._columns = {name: _room(column, 64) for name, column in columns.items()}
        self._window = _room(window, 64)
        self._group_columns = {name: _room(column, 8) for name, column in by_group.items()}
        self._last_names, self._last_slots = (), np.zeros(0, np.int64)
        self._drop_excess()
        return facts

    def _drop_excess(self) -> None:
        """Drop the nodes beyond `max_nodes`, those seen longest ago first."""
        used = np.flatnonzero(self.node("used"))
        excess = len(used) - self.max_nodes
        if excess > 0:
            self._release(used[np.argsort(self.node("seen")[used], kind="stable")[:excess]])
            self.dropped_nodes += excess


def _archived(name: str) -> str:
    """The name in a snapshot of a column by group."""
    return name if name in HISTOGRAMS else f"group_{name}"


def _typed(array: npt.NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if array.dtype != dtype or array.shape != shape:
        raise SnapshotError("the snapshot's columns have other types or do not fit one another")
    return array


def _longer(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array twice as long; the unused part takes no memory, because nothing has been written there."""
    longer = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def _room(array: npt.NDArray[Any], fewest: int) -> npt.NDArray[Any]:
    missing = max(0, fewest - len(array))
    return np.concatenate((array, np.zeros((missing, *array.shape[1:]), array.dtype)))
