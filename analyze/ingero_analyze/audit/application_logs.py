"""Results in the logs of applications that are run as benchmarks: LAMMPS, and MLPerf training (MLLOG). Pure."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from ingero_analyze.json_tables import Row

LAMMPS: Final = re.compile(r"LAMMPS \(\d|Loop time of \d")
MLPERF: Final = re.compile(r"[^{]{0,200}:::MLLOG\s")

_LOOP: Final = re.compile(r"Loop time of ([\d.eE+-]+) on (\d+) procs for (\d+) steps with (\d+) atoms")


def rows_of_lammps(lines: Sequence[str]) -> list[tuple[int, Row]]:
    """A row a loop: its time, by atoms, steps and processes. Loops that have these in common are runs."""
    loops = [(number, loop) for number, line in enumerate(lines, 1) if (loop := _LOOP.match(line))]
    times = Counter(loop.groups()[1:] for _, loop in loops)
    seen: Counter[tuple[str | Any, ...]] = Counter()
    rows = []
    for number, loop in loops:
        processes, steps, atoms = kind = loop.groups()[1:]
        seen[kind] += 1
        row = {"benchmark": f"LAMMPS, {atoms} atoms, {steps} steps, {processes} processes", "value": loop[1]}
        row |= {"unit": "s"} | ({"run": str(seen[kind])} if times[kind] > 1 else {})
        rows.append((number, row))
    return rows


def rows_of_mlperf(lines: Sequence[str]) -> list[tuple[int, Row]]:
    """A row a training: the median throughput that it says, else its time; without an end, or aborted, it failed."""
    throughputs, begun, rows = list[float](), dict[str, Any](), list[tuple[int, Row]]()
    for number, line in enumerate(lines, 1):
        event = _event(line) if ":::MLLOG" in line else {}
        key, value = event.get("key"), event.get("value")
        if key in ("submission_benchmark", "global_batch_size"):
            begun[key] = value
        elif key == "run_start":
            begun |= {key: event.get("time_ms"), "line": number}
            throughputs.clear()
        elif (rate := _throughput(key, value)) is not None:
            throughputs.append(rate)
        elif key == "run_stop" and "run_start" in begun:
            rows.append((begun["line"], _training(event, begun, throughputs)))
            del begun["run_start"]
    if "run_start" in begun:
        rows.append((begun["line"], {"benchmark": _name(begun), "status": "no end"}))
    return rows


def _training(stop: dict[str, Any], begun: dict[str, Any], throughputs: Sequence[float]) -> Row:
    name, said = _name(begun), stop.get("metadata")
    if throughputs:
        return {"benchmark": f"{name}, throughput", "value": f"{median(throughputs):g}", "unit": "samples/s"}
    status = said.get("status", "success") if isinstance(said, dict) else "success"
    try:
        took = {"value": f"{(float(stop['time_ms']) - float(begun['run_start'])) / 1000:g}", "unit": "s"}
    except (KeyError, TypeError, ValueError):
        took = {}
    return {"benchmark": f"{name}, time", **took} | ({} if status == "success" else {"status": "failed"})


def _event(line: str) -> dict[str, Any]:
    begin = line.find("{")
    try:
        found = json.loads(line[begin:]) if begin >= 0 else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _name(begun: dict[str, Any]) -> str:
    batch = f", batch {begun['global_batch_size']}" if "global_batch_size" in begun else ""
    return f"MLPerf {begun.get('submission_benchmark', 'training')}{batch}"


def _throughput(key: Any, value: Any) -> float | None:
    """What an event says about the throughput, such as one of tracked statistics."""
    found = value.get("throughput") if isinstance(value, dict) else value if key == "throughput" else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
