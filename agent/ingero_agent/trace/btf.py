"""Finds the offsets of kernel fields that the programs read, in the running kernel's type information. Pure.

The format is Linux BTF: a header, type records that are numbered from 1, and their names.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_HEADER: Final = struct.Struct("=HBBIIIII")
_TYPE: Final = struct.Struct("=III")
_MAGIC: Final = 0xEB9F
_INT, _POINTER, _STRUCT, _UNION, _TYPEDEF, _PROTOTYPE = 1, 2, 4, 5, 8, 13
_MODIFIERS: Final = (8, 9, 10, 11, 18)
_DEEPEST: Final = 32
_FIXED: Final = {1: 4, 3: 12, 14: 4, 17: 4}
_EACH: Final = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""Bytes behind a record of a kind: fixed, and for each of its members."""


class NoTypes(Exception):
    """The type information lacks a needed type or member; the text names it."""


Record = tuple[int, int, int, int]
"""Name, kind and number of members, type or size, and where its members begin."""


@dataclass(frozen=True)
class SwitchLayout:
    """Layout of the tracepoint sched_switch: the arguments with the previous task, the next task and the state.

    `state_argument` is `None` on kernels that do not pass it; it then lies `state_offset` bytes into the task.
    """

    pid_offset: int
    state_offset: int
    prev_argument: int
    next_argument: int
    state_argument: int | None


@dataclass(frozen=True)
class NumbersLayout:
    """Where a task keeps its numbers in every PID namespace that it is in, bytes from the start of each structure."""

    task_thread_pid: int
    task_leader: int
    pid_level: int
    pid_numbers: int
    upid_size: int
    upid_nr: int
    upid_ns: int
    ns_inum: int


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (struct.error, IndexError, ValueError):
        raise NoTypes("the kernel's type information cannot be read") from None


class Types:
    """The content of /sys/kernel/btf/vmlinux. Raises `NoTypes`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        with _readable():
            self._index()

    def _index(self) -> None:
        magic, _, _, length, type_at, type_size, name_at, name_size = _HEADER.unpack_from(self._data)
        if magic != _MAGIC:
            raise NoTypes("the kernel's type information has an unknown format")
        at, end = length + type_at, length + type_at + type_size
        self._names = self._data[length + name_at : length + name_at + name_size]
        self.records: list[Record] = [(0, 0, 0, 0)]
        self._first: dict[tuple[int, int], int] = {}
        while at < end:
            name, info, other = _TYPE.unpack_from(self._data, at)
            kind, count = info >> 24 & 0x1F, info & 0xFFFF
            if kind in (_STRUCT, _TYPEDEF) and name:
                self._first.setdefault((kind, name), len(self.records))
            self.records.append((name, info, other, at + _TYPE.size))
            at += _TYPE.size + _FIXED.get(kind, 0) + _EACH.get(kind, 0) * count

    def find(self, kind: int, name: str) -> Record:
        """The structure or type name of this name. Raises `NoTypes`."""
        number = self._first.get((kind, self._place(name)))
        if number is None:
            raise NoTypes(f"the kernel's type information lacks {name}")
        return self.records[number]

    def members(self, record: Record, size: int) -> list[tuple[int, ...]]:
        """The 32-bit words of each member, which takes `size` bytes."""
        count = record[1] & 0xFFFF
        return [struct.unpack_from(f"={size // 4}I", self._data, record[3] + size * i) for i in range(count)]

    def bare(self, number: int) -> Record:
        """The type behind type names and qualifiers. Raises `ValueError`."""
        for _ in range(_DEEPEST):
            if (self.records[number][1] >> 24 & 0x1F) not in _MODIFIERS:
                return self.records[number]
            number = self.records[number][2]
        raise ValueError("names of names without an end")

    def offsets(self, record: Record, *names: str) -> dict[str, int]:
        """Byte offsets of those of these members that the structure has, including members of its anonymous parts."""
        wanted = {self._place(name): name for name in names}
        wanted.pop(0, None)
        return dict(self._offsets(record, wanted, 0, 0))

    def _offsets(self, record: Record, wanted: dict[int, str], base: int, depth: int) -> Iterator[tuple[str, int]]:
        bits = 0xFFFFFF if record[1] >> 31 else 0xFFFFFFFF
        for name, kind, where in self.members(record, 12):
            at = base + (where & bits) // 8
            if name in wanted:
                yield wanted[name], at
            elif not name and depth < _DEEPEST:
                part = self.bare(kind)
                if part[1] >> 24 & 0x1F in (_STRUCT, _UNION):
                    yield from self._offsets(part, wanted, at, depth + 1)

    def _place(self, name: str) -> int:
        """The offset of a name in the string table; 0, the empty name, for one that is not there."""
        return self._names.find(b"\0" + name.encode() + b"\0") + 1


def switch_layout(types: Types) -> SwitchLayout:
    """The layout of the tracepoint sched_switch. Raises `NoTypes`."""
    with _readable():
        task, tracepoint = types.find(_STRUCT, "task_struct"), types.find(_TYPEDEF, "btf_trace_sched_switch")

        def is_task(number: int) -> bool:
            record = types.bare(number)
            return record[1] >> 24 & 0x1F == _POINTER and types.bare(record[2]) == task

        offsets = types.offsets(task, "pid", "__state", "state")
        state = offsets.get("__state", offsets.get("state"))
        prototype = types.bare(types.bare(tracepoint[2])[2])
        arguments = [kind for _, kind in types.members(prototype, 8)][1:]
        tasks = [number for number, kind in enumerate(arguments) if is_task(kind)]
        words = [
            number for number, kind in enumerate(arguments)
            if types.bare(kind)[1] >> 24 & 0x1F == _INT and types.bare(kind)[2] == 4
        ]  # fmt: skip
    if "pid" not in offsets or state is None or len(tasks) != 2:
        raise NoTypes("the tracepoint sched_switch has a shape that is not known")
    return SwitchLayout(offsets["pid"], state, tasks[0], tasks[1], words[0] if words else None)


def numbers_layout(types: Types) -> NumbersLayout:
    """The layout of a task's process numbers. Raises `NoTypes`."""

    def offset(structure: str, *names: str) -> list[int]:
        with _readable():
            found = types.offsets(types.find(_STRUCT, structure), *names)
        for name in names:
            if name not in found:
                raise NoTypes(f"the kernel's type information lacks {name} of {structure}")
        return [found[name] for name in names]

    thread_pid, leader = offset("task_struct", "thread_pid", "group_leader")
    level, numbers = offset("pid", "level", "numbers")
    number, namespace = offset("upid", "nr", "ns")
    (common,), (inum,) = offset("pid_namespace", "ns"), offset("ns_common", "inum")
    size = types.find(_STRUCT, "upid")[2]
    return NumbersLayout(thread_pid, leader, level, numbers, size, number, namespace, common + inum)
