"""Results in what benchmarks print: nccl-tests (or rccl-tests), gpu-burn, HPL, nvbandwidth, and others. Pure.

A log is turned into the rows of a table. It names its nodes where the benchmark prints them (nccl-tests) and its GPUs
where they have a UUID (gpu-burn); else the name of the file tells the node.
"""

import re
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Final

from ingero_analyze.audit.application_logs import LAMMPS, MLPERF, rows_of_lammps, rows_of_mlperf
from ingero_analyze.audit.diagnostic_results import SIGN as DIAGNOSTIC
from ingero_analyze.audit.diagnostic_results import rows_of_diagnostic
from ingero_analyze.json_tables import Row
from ingero_analyze.tables import Rows

Found = list[tuple[int, Row]]

COLUMNS: Final = ("node", "gpu", "model", "benchmark", "run", "value", "unit", "direction", "temperature", "status")
"""Columns of the rows; those that a log does not tell are left out."""

LOOKED_AT: Final = 1 << 20
"""Length of the begin of a text by which a log is known."""

_LAUNCHER: Final = re.compile(r"^(?:\[\d+,\d+\]<\w+>: ?|\[?\w[\w.-]*:\d+\]? (?=#))")
"""What launchers such as mpirun put before every line."""

_RANK: Final = re.compile(r"#\s+Rank\s+\d+\s.*?Pid\s+\d+ on\s+(\S+) device\s+\S+ (?:\[\S*\] )?(.*)")
_OPERATION: Final = re.compile(r"\b(\w+_perf)\b")
_BURNT: Final = re.compile(r"GPU (\d+): (.*) \(UUID: (GPU-[0-9a-fA-F-]+)\)")
_PROGRESS: Final = re.compile(r"(\d+\.\d+)%\s+proc'd: (.*?)\s+errors: (.*?)\s+temps: (.*)")
_RATE: Final = re.compile(r"\((-?\d+) Gflop/s\)")
_VERDICT: Final = re.compile(r"\s*GPU (\d+): (OK|FAULTY)\s*")
_HPL: Final = re.compile(
    r"(W[RC]\w+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+[\d.]+\s+([\d.]+(?:e[+-]?\d+)?)(?:\s|$)", re.I
)
_RESIDUAL: Final = re.compile(r"\|\|Ax-b\|\|.*\b(PASSED|FAILED)\b")
_RUNNING: Final = re.compile(r"Running (\w+)\.")
_DEVICE: Final = re.compile(r"Device (\d+): (.*?)(?: \([\w:.]+\))?:?\s*")


def rows_of_log(text: str, node: str, gpu: str = "", file: str = "") -> Rows | None:
    """Columns and rows of what a benchmark printed, with line numbers; None for any other text.

    `node`, `gpu`: those of results whose place the log does not tell. A log of a single GPU may give it any number.
    Runs of several nodes are others in every `file`: what began at the same line of two files is not one job.
    """
    read = _reader_of(text[:LOOKED_AT])
    if read is None:
        return None
    rows = read(_lines_of(text))
    if read is _nccl_tests:
        rows = [(number, row | {"run": f"{file}:{row['run']}"} if "run" in row else row) for number, row in rows]
    place = {"node": node}
    if gpu and len({row.get("gpu", "") for _, row in rows}) == 1:
        place["gpu"] = gpu
    rows = [
        (number, row if "node" in row or not row.get("gpu", "0").isdigit() else row | place) for number, row in rows
    ]
    return [name for name in COLUMNS if any(name in row for _, row in rows)] or ["node", "value"], iter(rows)


def is_log(text: str) -> bool:
    """Whether a text, or the begin of one, is a log that can be read."""
    return _reader_of(text) is not None


def _lines_of(text: str) -> list[str]:
    return [_LAUNCHER.sub("", line, count=1) for line in text.splitlines()]


def _reader_of(text: str) -> Callable[[Sequence[str]], Found] | None:
    lines = _lines_of(text)
    return next((read for sign, read in _READERS if any(map(sign.match, lines))), None)


def _nccl_tests(lines: Sequence[str]) -> Found:
    """A row a node: bus bandwidth of the largest message, out of place and in place. Several nodes are of one run."""
    rows: Found = []
    nodes, operation, model, begun = dict[str, None](), "", "", 1
    largest: tuple[int, int, list[str]] | None = None

    def end() -> None:
        if nodes and largest is not None:
            size, line, cells = largest
            results = [one for one in (_number(cells[2]), _number(cells[6])) if one is not None]
            wrong = any(_number(cells[place]) for place in (3, 7))
            common = {"benchmark": f"{operation or 'nccl-tests'}, {size} bytes", "unit": "GB/s"}
            common |= {"value": f"{fmean(results):g}"} if results else {}
            common |= {"model": model} if model else {}
            common |= {"status": "failed"} if wrong else {}
            common |= {"run": str(begun)} if len(nodes) > 1 else {}
            rows.extend((line, {"node": node, **common}) for node in nodes)

    for number, line in enumerate(lines, 1):
        rank, named = _RANK.match(line), _OPERATION.search(line)
        cells = line.split()
        if named:
            operation = named[1]
        if rank:
            if largest is not None:
                end()
                nodes, largest = {}, None
            begun = begun if nodes else number
            nodes[rank[1].rstrip(":")] = None
            model = rank[2].strip()
        elif len(cells) >= 10 and cells[0].isdigit() and cells[1].isdigit():
            results = cells[-8:]
            if largest is None or int(cells[0]) >= largest[0]:
                largest = int(cells[0]), number, results
    end()
    return rows


def _gpu_burn(lines: Sequence[str]) -> Found:
    """A row a GPU: median rate and temperature of the second half, when all are warm."""
    gpus, verdicts = dict[str, tuple[str, str]](), dict[str, str]()
    rates, heats = list[list[float]](), list[list[float]]()
    line_of = 1
    for number, line in enumerate(lines, 1):
        if burnt := _BURNT.match(line):
            gpus[burnt[1]] = burnt[3], burnt[2]
        elif verdict := _VERDICT.fullmatch(line):
            verdicts[verdict[1]] = verdict[2]
        elif progress := _PROGRESS.match(line):
            line_of = number
            if float(progress[1]) > 50:
                rates.append([float(one) for one in _RATE.findall(progress[2])])
                heats.append([float(one) for one in re.findall(r"(\d+) C", progress[4])])
    rows: Found = []
    for place in range(max(map(len, rates), default=0)):
        uuid, model = gpus.get(str(place), ("", ""))
        row = {"gpu": uuid or str(place), "benchmark": "gpu-burn", "unit": "GFLOPS"}
        row["value"] = f"{median(one[place] for one in rates if len(one) > place):g}"
        row |= {"model": model} if model else {}
        warm = [one[place] for one in heats if len(one) > place]
        row |= {"temperature": f"{median(warm):g}"} if warm else {}
        row |= {"status": "failed"} if verdicts.get(str(place)) == "FAULTY" else {}
        rows.append((line_of, row))
    return rows


def _hpl(lines: Sequence[str]) -> Found:
    """A row a result, of the node of the file."""
    rows: Found = []
    for number, line in enumerate(lines, 1):
        if found := _HPL.match(line):
            size, block, p, q = found.groups()[1:5]
            benchmark = f"HPL N {size} NB {block} P {p} Q {q}"
            rows.append((number, {"benchmark": benchmark, "value": found[6], "unit": "GFLOPS"}))
        elif rows and (residual := _RESIDUAL.match(line)) and residual[1] == "FAILED":
            rows[-1][1]["status"] = "failed"
    return rows


def _nvbandwidth(lines: Sequence[str]) -> Found:
    """A row a GPU and test; of a matrix between GPUs, the median of the row of each, which is the one that copies."""
    rows: Found = []
    models = dict[str, str]()
    test, columns = "", list[str]()
    for number, line in enumerate(lines, 1):
        cells = line.split()
        if device := _DEVICE.fullmatch(line):
            models[device[1]] = device[2]
        elif running := _RUNNING.match(line):
            test, columns = running[1], []
        elif test and cells and all(map(str.isdigit, cells)):
            columns = cells
        elif columns and len(cells) == len(columns) + 1 and cells[0].isdigit():
            values = [_number(cell) for cell in cells[1:]]
            known = {gpu: value for gpu, value in zip(columns, values, strict=True) if value is not None}
            between = "device_to_device" in test or "device" not in test
            found = {cells[0]: median(known.values())} if between and known else {} if between else known
            for gpu, value in found.items():
                row = {"gpu": gpu, "benchmark": test, "value": f"{value:g}", "unit": "GB/s"}
                rows.append((number, row | ({"model": models[gpu]} if models.get(gpu) else {})))
        else:
            columns = []
    return rows


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_READERS: Final[tuple[tuple[re.Pattern[str], Callable[[Sequence[str]], Found]], ...]] = (
    (_RANK, _nccl_tests),
    (re.compile(f"{_BURNT.pattern}|{_PROGRESS.pattern}"), _gpu_burn),
    (re.compile(f"HPLinpack |HPL-NVIDIA|{_HPL.pattern}", re.IGNORECASE), _hpl),
    (re.compile(r"nvbandwidth Version"), _nvbandwidth),
    (LAMMPS, rows_of_lammps),
    (MLPERF, rows_of_mlperf),
    (DIAGNOSTIC, rows_of_diagnostic),
)
