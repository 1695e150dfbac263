"""Where the running kernel keeps what the scheduler's program reads, from the kernel's own type information. Pure.

The format is the BTF of Linux: a header, records of types that are numbered from 1, and their names.
"""

import struct
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
    """The type information does not tell; the text says what is missing."""


@dataclass(frozen=True)
class SwitchLayout:
    """Of the tracepoint sched_switch: which arguments are the leaving task, the next and the state of the leaving.

    `state_argument` is `None` on kernels that do not pass it; it then lies `state_offset` bytes into the task.
    """

    pid_offset: int
    state_offset: int
    prev_argument: int
    next_argument: int
    state_argument: int | None


def switch_layout(data: bytes) -> SwitchLayout:
    """From /sys/kernel/btf/vmlinux. Raises `NoTypes`."""
    try:
        return _switch_layout(data)
    except (struct.error, IndexError, ValueError):
        raise NoTypes("the kernel's type information cannot be read") from None


def _switch_layout(data: bytes) -> SwitchLayout:
    magic, _, _, length, type_at, type_size, name_at, name_size = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise NoTypes("the kernel's type information has an unknown format")
    at, end, records = length + type_at, length + type_at + type_size, [(0, 0, 0, 0)]
    names = data[length + name_at : length + name_at + name_size]

    def place(name: bytes) -> int:
        return names.index(b"\0" + name + b"\0") + 1

    def members(record: tuple[int, int, int, int], size: int) -> list[tuple[int, ...]]:
        return [struct.unpack_from(f"={size // 4}I", data, record[3] + size * i) for i in range(record[1] & 0xFFFF)]

    task_name, tracepoint_name = place(b"task_struct"), place(b"btf_trace_sched_switch")
    task = tracepoint = 0
    while at < end:
        name, info, other = _TYPE.unpack_from(data, at)
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        if kind == _STRUCT and name == task_name:
            task = len(records)
        elif kind == _TYPEDEF and name == tracepoint_name:
            tracepoint = len(records)
        records.append((name, info, other, at + _TYPE.size))
        at += _TYPE.size + _FIXED.get(kind, 0) + _EACH.get(kind, 0) * count
    if not task or not tracepoint:
        raise NoTypes("the kernel's type information lacks task_struct or the tracepoint sched_switch")

    def bare(number: int) -> tuple[int, int, int, int]:
        for _ in range(_DEEPEST):
            if (records[number][1] >> 24 & 0x1F) not in _MODIFIERS:
                return records[number]
            number = records[number][2]
        raise ValueError("names of names without an end")

    def is_task(number: int) -> bool:
        record = bare(number)
        return record[1] >> 24 & 0x1F == _POINTER and bare(record[2]) == records[task]

    wanted = {place(word): word for word in (b"pid", b"__state", b"state") if b"\0" + word + b"\0" in names}
    bits = 0xFFFFFF if records[task][1] >> 31 else 0xFFFFFFFF
    offsets = {wanted[name]: (where & bits) // 8 for name, _, where in members(records[task], 12) if name in wanted}
    state = offsets.get(b"__state", offsets.get(b"state"))
    prototype = bare(bare(tracepoint)[2])
    arguments = [kind for _, kind in members(prototype, 8)][1:]
    tasks = [number for number, kind in enumerate(arguments) if is_task(kind)]
    words = [
        number for number, kind in enumerate(arguments)
        if bare(kind)[1] >> 24 & 0x1F == _INT and bare(kind)[2] == 4
    ]  # fmt: skip
    if b"pid" not in offsets or state is None or len(tasks) != 2:
        raise NoTypes("the tracepoint sched_switch has a shape that is not known")
    return SwitchLayout(offsets[b"pid"], state, tasks[0], tasks[1], words[0] if words else None)
