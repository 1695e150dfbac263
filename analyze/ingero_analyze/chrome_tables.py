"""Reads what tracers of whole jobs write in Chrome's format as rows: all ranks in one file, a row for every event.

Names of processes and threads tell the rank ("DP rank [1]", "PP rank 2, TP rank 0, dp-comm"), or values of events
(`args`) do, or each process is one if all do the same. Times are microseconds (Trace Event Format, phases X, B, E and
M). Pure.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

Cells = dict[str, Any]

_LABEL: Final = re.compile(
    r"(?:\b([a-z]+)(?:[ _-]parallel)?[ _-]*)?\b(rank|stage|node|gpu)[ _:=#\[(-]*(\d{1,7})\b", re.IGNORECASE
)
_COORDINATES: Final = {"data": "dp", "pipeline": "pp", "tensor": "tp"}
_WHOLE: Final = ("", "global", "world", "process", "the", "of", "worker")
"""Words before `rank` that leave it the rank of the whole job."""

_OWN: Final = {"name": "name", "ts": "ts_us", "dur": "dur_us"}
"""What is read of every event, and its columns. No value of `args` takes the place of one."""


def events_of(whole: Any) -> list[Any] | None:
    """The events of a trace; `None` for any other document."""
    events = whole.get("traceEvents") if isinstance(whole, dict) else whole
    if not isinstance(events, list):
        return None
    first = next((event for event in events if isinstance(event, dict)), {})
    return events if isinstance(whole, dict) or ("ph" in first and ("ts" in first or first["ph"] == "M")) else None


def rows_of(events: Iterable[Any]) -> Iterator[Cells]:
    """A row for each event that lasts: name, times, what `args` say, and the parts of its rank by name."""
    known = [event for event in events if isinstance(event, dict)]
    labels: dict[tuple[str, ...], Cells] = {}
    for event in known:
        if event.get("ph") == "M" and event.get("name") in ("process_name", "thread_name"):
            args = event.get("args")
            labelled = _labels(str(args.get("name", ""))) if isinstance(args, dict) else {}
            own = _place(event, "pid", "tid") if event["name"] == "thread_name" else _place(event, "pid")
            labels.setdefault(own, {}).update(labelled)
    by_process = not any(labels.values()) and _do_the_same(known)
    for event in _lasting(known):
        args = event.get("args")
        told = (
            {name: cell for name, cell in args.items() if name not in (*_OWN, *_OWN.values())}
            if isinstance(args, dict)
            else {}
        )
        place = labels.get(_place(event, "pid"), {}) | labels.get(_place(event, "pid", "tid"), {})
        if by_process and "rank" not in told:
            place = {"rank": event.get("pid")}
        yield {column: event.get(name) for name, column in _OWN.items()} | place | told


def _place(event: Cells, *names: str) -> tuple[str, ...]:
    """The process, or the thread, of an event."""
    return tuple(str(event.get(name)) for name in names)


def _do_the_same(events: Iterable[Cells]) -> bool:
    """Whether there are several processes, each with most of all names of operations."""
    names: dict[tuple[str, ...], set[str]] = {}
    for event in events:
        if event.get("ph") in ("X", "B"):
            names.setdefault(_place(event, "pid"), set()).add(str(event.get("name")))
    all_names = set[str]().union(*names.values())
    return len(names) > 1 and 2 * len(all_names.intersection(*names.values())) >= len(all_names)


def _labels(text: str) -> Cells:
    """What the name of a process or thread says of its rank: `rank`, `dp_rank`, `pp_rank`, `stage` and so on."""
    found: Cells = {}
    for before, what, number in _LABEL.findall(text.lower()):
        kind = _COORDINATES.get(before, before)
        found[f"{kind}_{what}" if what == "rank" and kind not in _WHOLE else what] = int(number)
    return found


def _lasting(events: Iterable[Cells]) -> Iterator[Cells]:
    """Complete events, and pairs of a begin and an end on one thread: of one name, else the innermost begin."""
    begun: dict[tuple[str, ...], list[Cells]] = {}
    for event in events:
        phase, thread = event.get("ph"), _place(event, "pid", "tid")
        if phase == "X":
            yield event
        elif phase == "B":
            begun.setdefault(thread, []).append(event)
        elif phase == "E" and begun.get(thread):
            begin = _begin_of(begun[thread], event.get("name"))
            if isinstance(event.get("ts"), int | float) and isinstance(begin.get("ts"), int | float):
                yield begin | {"dur": event["ts"] - begin["ts"]}


def _begin_of(begun: list[Cells], name: Any) -> Cells:
    """Take out the latest begin with the name of the end; the latest of all if there is none."""
    place = next((place for place in reversed(range(len(begun))) if begun[place].get("name") == name), -1)
    return begun.pop(place)
