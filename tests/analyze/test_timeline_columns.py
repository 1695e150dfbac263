"""Timelines whose columns have other names, other units, or are not there."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from ingero_analyze.diagnose.columns import TimelineColumns, kind_of, kind_of_operation, recognised, units_of_times
from ingero_analyze.diagnose.hidden_waits import waiting_operation
from ingero_analyze.diagnose.step_times import operation_columns
from ingero_fleet.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, interleaved, ring

Columns = dict[str, Any]
CULPRIT = 3


def job() -> Columns:
    """Eight ranks that meet once a step; one is late."""
    return dict(ring(np.random.default_rng(1), 8, culprit=CULPRIT).arrays())


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["diagnose", "--quiet", *map(str, arguments)])


def answer(*arguments: object) -> dict[str, Any]:
    done = run("--json", *arguments)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["problems"]["count"] == 0
    return found


def csv(folder: Path, columns: Columns, name: str = "timeline.csv") -> Path:
    file = folder / name
    file.write_text(Table({name: [column] for name, column in columns.items()}).csv())
    return file


def renamed(columns: Columns, **names: str) -> Columns:
    """The columns with other names; those with an empty one are left out."""
    return {names.get(name, name): column for name, column in columns.items() if names.get(name, name)}


USUAL = {
    "snake case": {"rank": "global_rank", "op": "op_name", "kind": "category", "start": "start_time",
                   "duration": "elapsed"},
    "camel case": {"rank": "rankId", "op": "optype", "kind": "eventType", "start": "startTs", "step": "iteration"},
    "communicators": {"op": "name", "kind": "type", "group": "comm_hash", "seq": "coll_sn", "step": "global_step"},
}  # fmt: skip


@pytest.mark.parametrize("names", USUAL.values(), ids=USUAL)
def test_columns_are_known_by_usual_names(tmp_path: Path, names: dict[str, str]) -> None:
    columns = job()

    found = answer(csv(tmp_path, renamed(columns, **names)))

    assert {**found, "read": {}} == {**answer(csv(tmp_path, columns)), "read": {}}
    assert (found["ranks"], found["read"]["columns"]["op"]) == ([CULPRIT], names["op"])


@pytest.mark.parametrize("process", ["pid", "process", "Process ID"])
def test_processes_are_ranks_where_no_column_tells_ranks(tmp_path: Path, process: str) -> None:
    columns = interleaved(np.random.default_rng(1), culprit=5, late=0.1).arrays()
    told = renamed(dict(columns), rank=process, op="span", stage="pp_rank", data_parallel="")

    found = answer(csv(tmp_path, told))

    assert (found["kind"], found["ranks"]) == ("node", [5])
    assert (found["read"]["columns"]["rank"], found["read"]["columns"]["op"]) == (process, "span")
    assert answer(csv(tmp_path, {**told, "worker": columns["rank"]}))["read"]["columns"]["rank"] == "worker"


def by_rank(columns: Columns) -> dict[int, list[dict[str, Any]]]:
    """The rows of each rank."""
    found: dict[int, list[dict[str, Any]]] = {}
    for cells in zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True):
        row = dict(zip(columns, cells, strict=True))
        found.setdefault(row.pop("rank"), []).append(row)
    return found


def test_lists_of_rows_by_rank_are_one_timeline(tmp_path: Path) -> None:
    rows, told = by_rank(job()), answer(csv(tmp_path, job()))
    documents = {
        "by number": rows,
        "by name": {f"rank_{rank}": own for rank, own in rows.items()},
        "in objects": {"ranks": [{"rank": rank, "events": own} for rank, own in rows.items()]},
        "in a list": [{"rank": rank, "host": "a", "events": own} for rank, own in rows.items()],
    }

    for name, document in documents.items():
        (tmp_path / "job.json").write_text(json.dumps(document))
        found = answer(tmp_path / "job.json")

        assert found["ranks"] == [CULPRIT], name
        assert found["seconds_lost_per_step"] == pytest.approx(told["seconds_lost_per_step"], rel=1e-6)


def test_the_rank_is_in_the_name_of_the_folder_where_all_files_have_one_name(tmp_path: Path) -> None:
    columns = job()
    for rank in np.unique(columns["rank"]).tolist():
        (tmp_path / f"rank{rank}").mkdir()
        own = columns["rank"] == rank
        csv(tmp_path / f"rank{rank}", {name: np.asarray(column)[own] for name, column in columns.items()
                                       if name != "rank"}, "events.csv")  # fmt: skip

    assert answer(tmp_path)["ranks"] == [CULPRIT]


@pytest.mark.parametrize("zone", ["+00:00", "Z", ""])
@pytest.mark.parametrize("length", [("duration", 1.0), ("dur_ms", 1e3), ("end", 0.0)], ids=lambda length: length[0])
def test_times_are_also_dates(tmp_path: Path, zone: str, length: tuple[str, float]) -> None:
    columns, (name, per_second) = job(), length

    def dates(seconds: Any) -> list[str]:
        start = np.datetime64("2026-11-27T17:00:00", "us")
        return [f"{start + np.timedelta64(round(one * 1e6), 'us')}{zone}" for one in np.asarray(seconds).tolist()]

    ends = dates(columns["start"] + columns["duration"]) if name == "end" else columns["duration"] * per_second
    kept = {role: column for role, column in columns.items() if role not in ("start", "duration")}

    found = answer(csv(tmp_path, {**kept, "start": dates(columns["start"]), name: ends}))

    assert found["ranks"] == [CULPRIT]
    assert found["evidence"]["step_seconds"] == pytest.approx(
        answer(csv(tmp_path, columns))["evidence"]["step_seconds"], rel=1e-3
    )


@pytest.mark.parametrize("place", ["pp_rank", "hostname", "gpu"])
def test_a_place_that_several_ranks_share_is_no_rank(tmp_path: Path, place: str) -> None:
    columns = dict(interleaved(np.random.default_rng(1)).arrays())

    done = run(csv(tmp_path, renamed(columns, rank="", stage=place, data_parallel="")))

    assert done.exit_code == 2
    assert f"operations of one {place} overlap, so several ranks share it" in done.stderr


def test_a_pipeline_with_a_rank_a_stage_needs_no_column_of_ranks(tmp_path: Path) -> None:
    columns = dict(interleaved(np.random.default_rng(1), replicas=1).arrays())

    found = answer(csv(tmp_path, renamed(columns, rank="", data_parallel="")))

    assert found["evidence"]["ranks"] == 4


@pytest.mark.parametrize("words", [("compute", "collective"), ("GEMM", "AllReduce")])
def test_the_type_of_an_operation_beside_its_name_is_its_kind(tmp_path: Path, words: tuple[str, str]) -> None:
    columns = job()
    kinds = np.where(columns["kind"] == "compute", *words)

    found = answer(csv(tmp_path, {**renamed(columns, op="kernel_name", kind=""), "op_type": kinds}))

    assert {**found, "read": {}} == {**answer(csv(tmp_path, columns)), "read": {}}
    assert (found["read"]["columns"]["op"], found["read"]["columns"]["kind"]) == ("kernel_name", "op_type")


UNITS = {
    "both named": ("start_us", 1e6, "dur (ms)", 1e3, ("us", "ms")),
    "the duration named": ("start", 1.0, "duration_ms", 1e3, ("s", "ms")),
    "the duration named, starts in the same unit": ("start", 1e3, "duration_ms", 1e3, ("ms", "ms")),
    "as in Chrome's traces": ("ts", 1e6, "dur", 1e6, ("us", "us")),
    "durations that would be too long": ("start", 1.0, "duration", 1e3, ("s", "ms")),
    "seconds": ("begin", 1.0, "length", 1.0, ("s", "s")),
}


@pytest.mark.parametrize(("start", "starts", "duration", "durations", "units"), UNITS.values(), ids=UNITS)
def test_units_are_those_that_names_say_or_else_the_ones_that_can_be(
    tmp_path: Path, start: str, starts: float, duration: str, durations: float, units: tuple[str, str]
) -> None:
    columns = job()
    scaled = {**columns, "start": columns["start"] * starts, "duration": columns["duration"] * durations}

    found = answer(csv(tmp_path, renamed(scaled, start=start, duration=duration)))

    assert found["ranks"] == [CULPRIT]
    assert tuple(found["read"]["units"].values()) == units
    assert found["evidence"]["step_seconds"] == pytest.approx(
        answer(csv(tmp_path, columns))["evidence"]["step_seconds"], rel=1e-3
    )


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_times_since_1970_show_their_unit(tmp_path: Path, unit: str, per_second: int) -> None:
    columns = job()
    since = {
        **columns,
        "start": [f"{round((1_790_000_000 + start) * per_second, 6):.6f}" for start in columns["start"].tolist()],
        "duration": columns["duration"] * per_second,
    }

    found = answer(csv(tmp_path, {name: np.array(column) for name, column in since.items()}))

    assert (found["ranks"], found["read"]["units"]) == ([CULPRIT], {"start": unit, "duration": unit})


def test_the_flag_says_the_unit_where_names_do_not(tmp_path: Path) -> None:
    columns = job()
    file = csv(tmp_path, {**columns, "start": columns["start"] * 1e6, "duration": columns["duration"] * 1e6})

    assert "read as microseconds" in answer(file)["evidence"]["note"]
    found = answer(file, "--unit", "us")
    assert "note" not in found["evidence"]
    assert found["evidence"]["step_seconds"] < 2


@pytest.mark.parametrize(("per_second", "unit"), [(1e3, "ms"), (1e6, "us"), (1e9, "ns")])
def test_whole_numbers_that_can_hardly_be_seconds_are_read_in_the_likeliest_unit(
    tmp_path: Path, per_second: float, unit: str
) -> None:
    columns = job()
    times = {name: np.rint(columns[name] * per_second).astype(np.int64) for name in ("start", "duration")}

    found = answer(csv(tmp_path, {**columns, **times}))

    assert (found["ranks"], found["read"]["units"]) == ([CULPRIT], {"start": unit, "duration": unit})
    assert found["evidence"]["step_seconds"] < 2


def test_steps_of_minutes_are_believed_where_times_have_fractions(tmp_path: Path) -> None:
    columns = job()
    file = csv(tmp_path, {**columns, "start": columns["start"] * 200, "duration": columns["duration"] * 200})

    found = answer(file)

    assert found["read"]["units"]["duration"] == "s"
    assert "--unit ms" in found["evidence"]["note"]


@pytest.mark.parametrize(
    ("per_second", "form", "delimiter"),
    [
        (1.0, lambda value: f"{value:.6f}".replace(".", ","), ";"),
        (1.0, lambda value: f"{value:.3f}".replace(".", ","), "\t"),
        (1e6, lambda value: f"{value:,.1f}".translate(str.maketrans(",.", ".,")), ";"),
        (1e6, lambda value: f"{value:,.1f}", ";"),
    ],
    ids=["decimal commas", "three digits", "points between thousands", "commas between thousands"],
)
def test_numbers_with_commas_are_read(
    tmp_path: Path, per_second: float, form: Callable[[float], str], delimiter: str
) -> None:
    columns = job()
    for name in ("start", "duration"):
        columns[name] = [form(value * per_second) for value in columns[name]]
    file = tmp_path / "timeline.csv"
    rows = zip(*columns.values(), strict=True)
    file.write_text("\n".join(delimiter.join(map(str, row)) for row in [tuple(columns), *rows]))

    found = answer(file, *(["--unit", "us"] if per_second > 1 else []))

    assert (found["ranks"], found["evidence"]["step_seconds"]) == ([CULPRIT], pytest.approx(1.05, abs=0.05))


@pytest.mark.parametrize("lines", [True, False], ids=["a line each", "a list"])
def test_dictionaries_with_scalars_of_numpy_are_read(tmp_path: Path, lines: bool) -> None:
    columns = {name: list(column) for name, column in job().items()}
    printed = [repr(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
    assert "np.float64" in printed[0]
    file = tmp_path / "timeline.txt"
    file.write_text("\n".join(printed) if lines else f"[{', '.join(printed)}]")

    assert answer(file)["ranks"] == [CULPRIT]


@pytest.mark.parametrize(("end", "per_second"), [("end", 1.0), ("end_time_ms", 1e3)])
def test_an_end_stands_for_a_duration(tmp_path: Path, end: str, per_second: float) -> None:
    columns = job()
    begin = {"start": columns["start"]} if per_second == 1 else {"start_s": columns["start"]}
    ended = {**renamed(columns, duration="", start=""), **begin,
             end: (columns["start"] + columns["duration"]) * per_second}  # fmt: skip

    assert answer(csv(tmp_path, ended))["ranks"] == [CULPRIT]


def test_collectives_are_known_by_the_names_of_operations(tmp_path: Path) -> None:
    columns = interleaved(np.random.default_rng(1), culprit=5, late=0.1).arrays()

    found = answer(
        csv(tmp_path, renamed(dict(columns), kind="", op="optype", stage="pp_rank", data_parallel="dp_rank"))
    )

    assert (found["kind"], found["ranks"]) == ("node", [5])
    assert found["read"]["collectives_by_name"] == ["grads-sync", "recv", "send"]
    table = run("--table", csv(tmp_path, renamed(dict(columns), kind="", op="optype"))).stdout
    assert "collectives, by their names: grads-sync, recv, send" in table
    assert "op from optype" in table


COLLECTIVES = (
    "all_reduce", "AllReduce", "nccl:all_gather", "ncclDevKernel_AllGather_RING_LL", "reduce-scatter", "alltoall",
    "all_to_all_single", "broadcast", "forward-send", "recv_backward", "irecv", "params-all-gather", "grads_sync",
    "barrier", "_allgather_base", "reduce_scatter_tensor_coalesced", "gather",
    "optimizer-clip-main-grad", "optimizer-unscale-and-check-inf",
)  # fmt: skip
COMPUTE = (
    "forward-compute", "backward", "optimizer", "gemm", "reduce_kernel", "aten::gather", "layer_norm", "dataloader",
    "index_select", "embedding", "attention", "synchronize", "scatter_add", "adam",
    "clip_grad", "optimizer-copy-to-main-grad",
)  # fmt: skip


def test_kinds_of_several_words_are_those_of_all_of_them() -> None:
    kinds = ("nccl_collective", "comm op", "NCCL kernel", "compute", "gpu_user_annotation", "cuda_runtime", "kernel",
             "gpu_compute", "compute op")  # fmt: skip
    assert [kind_of(kind) for kind in kinds] == [1, 1, 1, 0, -1, -1, 0, 0, 0]


@pytest.mark.parametrize("name", ["collective_name", "coll", "Collective Type", "nccl_op"])
def test_a_column_of_collectives_is_one_of_operations(name: str) -> None:
    assert recognised(("", "rank", "start", "duration", name), {}).roles["op"] == name


@pytest.mark.parametrize(
    ("names", "start", "duration"),
    [
        (("rank", "step", "phase", "time_ms"), None, "time_ms"),
        (("rank", "step", "phase", "timestamp", "time_ms"), "timestamp", "time_ms"),
        (("rank", "step", "phase", "time_ms", "dur_ms"), "time_ms", "dur_ms"),
    ],
)
def test_a_time_with_a_unit_is_how_long_an_operation_took_where_nothing_else_says_it(
    names: tuple[str, ...], start: str | None, duration: str
) -> None:
    roles = recognised(names, {}).roles

    assert (roles.get("start"), roles["duration"]) == (start, duration)


def test_a_time_without_a_unit_is_none() -> None:
    with pytest.raises(ValueError, match="there is no column 'duration'"):
        recognised(("rank", "step", "phase", "time"), {})


def test_kernels_are_no_collectives_and_collectives_are_no_kernels() -> None:
    assert [name for name in COLLECTIVES if not kind_of_operation(name)] == []
    assert [name for name in COMPUTE if kind_of_operation(name)] == []


PLACES = {
    "node and GPU": (("node", "local_rank"), lambda rank: (f"n{rank // 4}", rank % 4), "n0/3"),
    "data parallel and stage": (("dp_rank", "pp_rank"), lambda rank: (rank // 4, rank % 4), "dp0/pp3"),
    "GPUs of one node": (("gpu",), lambda rank: (rank,), CULPRIT),
    "hosts": (("hostname",), lambda rank: (f"n{rank}",), "n3"),
}


@pytest.mark.parametrize(("names", "place", "culprit"), PLACES.values(), ids=PLACES)
def test_a_rank_is_named_by_its_place_where_it_has_no_number(
    tmp_path: Path, names: tuple[str, ...], place: Any, culprit: int | str
) -> None:
    columns = job()
    places = zip(*(place(rank) for rank in columns["rank"].tolist()), strict=True)
    placed = {**dict(zip(names, map(np.array, places), strict=True)), **renamed(columns, rank="")}

    found = answer(csv(tmp_path, placed))

    assert found["evidence"]["ranks"] == 8
    # Stages are compared by themselves, so of a rank that is alone with its stage's label nothing is known.
    assert found["ranks"] == [culprit] or names == ("dp_rank", "pp_rank")


def test_files_without_ranks_are_of_the_ranks_in_their_names(tmp_path: Path) -> None:
    columns = job()
    files = [
        csv(tmp_path, {name: column[columns["rank"] == rank] for name, column in columns.items() if name != "rank"},
            f"rank{rank}.csv")
        for rank in range(8)
    ]  # fmt: skip

    assert answer(*files)["ranks"] == [CULPRIT]
    alone = run(files[0])
    assert (alone.exit_code, "there is no column 'rank'" in alone.stderr) == (2, True)


def test_json_and_parquet_are_read_by_the_same_names(tmp_path: Path) -> None:
    columns = renamed(job(), op="operation", start="begin", duration="dur")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]
    (tmp_path / "timeline.json").write_text(json.dumps(rows))
    (tmp_path / "timeline.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(
        pa.table({name: column.tolist() for name, column in columns.items()}), tmp_path / "timeline.parquet"
    )

    found = [answer(tmp_path / f"timeline.{ending}") for ending in ("json", "jsonl", "parquet")]

    assert [one["ranks"] for one in found] == [[CULPRIT]] * 3


REFUSED = {
    "nothing is known": ("a,b,c\n1,2,3\n", (), "there is no column 'op' and 'start' and 'duration' and 'rank'"),
    "two columns could be one": ("rank,op,start,dur,DUR\n", (), "the columns dur, DUR could all be the duration"),
    "a chosen column that is not there": ("rank,op,start,duration\n", ("--column", "op=x"), "there is no column 'x'"),
    "a negative duration": ("rank,op,start,end\n0,a,2,1\n", (), "row 2, column end: a duration is never negative"),
}


@pytest.mark.parametrize(("text", "flags", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_said_with_its_place(
    tmp_path: Path, text: str, flags: tuple[str, ...], message: str
) -> None:
    (tmp_path / "t.csv").write_text(text)

    done = run(*flags, tmp_path / "t.csv")

    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    "flags", [("--column", "op"), ("--column", "colour=x"), ("--column", "op=a", "--column", "op=b")]
)
def test_a_column_needs_a_role_and_a_name(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = run(*flags, csv(tmp_path, job()))

    assert (done.exit_code, "ROLE=COLUMN is needed" in done.stderr) == (2, True)


def test_a_name_that_is_that_of_the_role_goes_before_usual_ones() -> None:
    names = ("rank", "worker", "op", "name", "kind", "start", "timestamp", "duration", "end", "step", "iteration")

    found = recognised(names, {})

    assert dict(found.roles) == {name: name for name in ("rank", "op", "kind", "start", "duration", "step")}


@pytest.mark.parametrize("share", [0.0, 1e-5, 0.5, 3.0])
def test_starts_and_durations_are_of_one_unit_unless_that_is_impossible(share: float) -> None:
    columns = TimelineColumns({"start": "begin", "duration": "length"}, {}, traced=False)

    assert units_of_times(columns, None, start=100.0, span=50.0, busy=50.0 * share) == ("s", "s")


def since_their_step(columns: Columns) -> Columns:
    """The same with starts since the begin of each step."""
    step, start = np.asarray(columns["step"]), np.asarray(columns["start"])
    return columns | {
        "start": start - np.array([start[step == number].min() for number in range(step.max() + 1)])[step]
    }


@pytest.mark.parametrize(
    ("per_second", "ranks_apart"), [((1.0, 1.0), False), ((1e3, 1e3), True), ((1.0, 1e3), False)]
)
def test_starts_may_be_times_since_the_begin_of_each_step(
    tmp_path: Path, per_second: tuple[float, float], ranks_apart: bool
) -> None:
    columns = job()
    again = since_their_step(columns)
    again |= {
        name: np.asarray(again[name]) * many for name, many in zip(("start", "duration"), per_second, strict=True)
    }
    rank = np.asarray(again["rank"])
    parts = [{name: np.asarray(column)[rank == one] for name, column in again.items()} for one in range(8)]
    files = [csv(tmp_path, part, f"rank{one}.csv") for one, part in enumerate(parts)] if ranks_apart else []

    found = answer(*(files or [csv(tmp_path, again)]), *(["--unit", "ms"] if ranks_apart else []))

    expected = answer(csv(tmp_path, columns, "clock.csv"))
    assert (found["ranks"], found["read"]["starts"]) == ([CULPRIT], "since the begin of each step")
    assert found["seconds_lost_per_step"] == pytest.approx(expected["seconds_lost_per_step"], rel=1e-3)
    assert found["evidence"]["step_seconds"] == pytest.approx(expected["evidence"]["step_seconds"], rel=0.05)
    assert "starts" not in expected["read"]


@pytest.mark.parametrize("unit", ["", "ms", " us"], ids=["no unit", "ms", "us"])
def test_operations_of_a_step_without_starts_follow_one_another(tmp_path: Path, unit: str) -> None:
    columns = job()
    del columns["start"]
    if unit:
        columns["duration"] = [
            f"{seconds * {'ms': 1e3, ' us': 1e6}[unit]:.4f}{unit}" for seconds in columns["duration"]
        ]
    found = answer(csv(tmp_path, columns))
    assert (found["kind"], found["ranks"]) == ("node", [CULPRIT])
    assert found["read"]["starts"] == "one after another"
    assert found["evidence"]["step_seconds"] == pytest.approx(
        answer(csv(tmp_path, job()))["evidence"]["step_seconds"], rel=0.05
    )


def test_waits_of_ranks_alone_are_enough(tmp_path: Path) -> None:
    columns = job()
    waits = np.asarray(columns["kind"]) == "collective"
    kept = {name: np.asarray(columns[name])[waits] for name in ("step", "rank", "op", "duration")}
    found = answer(csv(tmp_path, renamed(kept, op="collective", duration="wait_s")))
    assert (found["kind"], found["ranks"], found["read"]["units"]["duration"]) == ("node", [CULPRIT], "s")


@pytest.mark.parametrize("form", ["rank{0}_{1}", "{1}.rank-{0}"])
def test_ranks_may_have_columns_of_their_own(tmp_path: Path, form: str) -> None:
    header, *rows = (row.split(",") for row in logged_steps())
    steps: dict[str, dict[str, str]] = {}
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        rank, step = cells.pop("rank"), cells.pop("iteration")
        steps.setdefault(step, {}).update({form.format(rank, name): cell for name, cell in cells.items()})
    names = list(next(iter(steps.values())))
    lines = [",".join((step, *(cells[name] for name in names))) for step, cells in steps.items()]
    (tmp_path / "job.csv").write_text("\n".join([",".join(("iteration", *names)), *lines]))
    assert answer(tmp_path / "job.csv")["ranks"] == [CULPRIT]


def test_ranks_may_be_a_list_in_each_line(tmp_path: Path) -> None:
    header, *rows = (row.split(",") for row in logged_steps())
    steps: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        steps.setdefault(cells.pop("iteration"), []).append(cells)
    lines = [json.dumps({"iteration": step, "ranks": ranks}) for step, ranks in steps.items()]
    (tmp_path / "job.jsonl").write_text("\n".join(lines))
    assert answer(tmp_path / "job.jsonl")["ranks"] == [CULPRIT]


def test_parts_of_iterations_that_are_called_steps_are_on_one_clock(tmp_path: Path) -> None:
    columns = job()

    found = answer(csv(tmp_path, columns | {"step": np.asarray(columns["step"]) % 3}))

    assert "starts" not in found["read"]


def logged_steps(late: int | None = CULPRIT, unit: str = "_ms", per_second: float = 1e3) -> list[str]:
    """A row for every step of 8 ranks, as a training loop logs it, with an evaluation in every twentieth step."""
    rng, ranks, steps = np.random.default_rng(5), 8, 60
    forward, backward, data = (share * (1 + 0.02 * rng.normal(size=(steps, ranks))) for share in (0.1, 0.2, 0.01))
    if late is not None:
        forward[:, late] *= 1.1
        backward[:, late] *= 1.1
    own = forward + backward + data
    waits = own.max(axis=1, keepdims=True) - own + 0.02
    times = ("data", "forward", "backward", "allreduce", "eval", "step_time")
    lines = [",".join(("timestamp", "iteration", "rank", "loss", *(f"{name}{unit}" for name in times)))]
    for step, rank in np.ndindex(steps, ranks):
        values = [part[step, rank] * per_second for part in (data, forward, backward, waits)]
        evaluated = "" if step % 20 < 19 else f"{0.5 * per_second:g}"
        lines.append(",".join((f"2026-01-01T00:{step:02d}:00Z", str(step), str(rank), "2.3",
                               *(f"{value:.6g}" for value in values), evaluated, f"{sum(values):.6g}")))  # fmt: skip
    return lines


@pytest.mark.parametrize(("unit", "per_second", "flags"), [("_ms", 1e3, ()), (" (s)", 1.0, ()), ("", 1e6, ("us",))])
def test_a_row_may_be_a_step_with_a_column_for_every_operation(
    tmp_path: Path, unit: str, per_second: float, flags: tuple[str, ...]
) -> None:
    lines = logged_steps(unit=unit or "_time", per_second=per_second)
    (tmp_path / "log.csv").write_text("\n".join(lines))

    found = answer(tmp_path / "log.csv", *(("--unit", *flags) if flags else ()))

    assert (found["kind"], found["ranks"], found["evidence"]["steps"]) == ("node", [CULPRIT], 60)
    assert found["evidence"]["step_seconds"] == pytest.approx(0.37, abs=0.02)
    assert list(found["read"]["operations"].values()) == ["data", "forward", "backward", "allreduce", "eval"]
    assert found["read"]["collectives_by_name"] == ["allreduce"]


def test_logs_of_a_healthy_job_name_nobody_and_those_of_single_ranks_need_neither_rank_nor_step(
    tmp_path: Path,
) -> None:
    for late, expected in ((None, []), (CULPRIT, [CULPRIT])):
        head, *lines = logged_steps(late)
        for rank in range(8):
            own = [line.split(",") for line in lines if line.split(",")[2] == str(rank)]
            short = [",".join(head.split(",")[3:]), *(",".join(cells[3:]) for cells in own)]
            (tmp_path / f"rank{rank}.csv").write_text("\n".join(short))

        assert answer(tmp_path)["ranks"] == expected


def test_a_cell_that_is_no_time_is_counted_with_its_place(tmp_path: Path) -> None:
    lines = logged_steps()
    cells = lines[10].split(",")
    lines[10] = ",".join((*cells[:5], "slow", *cells[6:]))
    (tmp_path / "log.csv").write_text("\n".join(lines))

    done = run("--json", tmp_path / "log.csv")

    assert "row 11, column duration: 'slow' is not a number" in done.stderr
    assert json.loads(done.stdout)["ranks"] == [CULPRIT]


OPERATIONS = {
    "with units": ("fwd_ms, Backward (s), allreduce_us", ["fwd", "backward", "allreduce"]),
    "with words": ("forward_time, bwd duration, comm_latency", ["forward", "bwd", "comm"]),
    "with words before": ("time/data, timing/forward, timers.backward", ["data", "forward", "backward"]),
    "nothing of instants, of whole steps, of scatter": (
        "fwd_ms, bwd_ms, start_time, end_ms, time_utc, epoch_time, step_time_ms, total_ms, fwd_std_ms, eta_s",
        ["fwd", "bwd"],
    ),
    "one alone": ("fwd_ms, step_time_ms", []),
    "all computing alone": ("compute_ms, step_time_ms", ["compute"]),
    "computing and waiting": ("compute, wait", ["compute", "wait"]),
    "with names of operations only": (
        "loss, dataloader, forward_attn, backward, dp_all_reduce, forward_flops, lr, optimizer",
        ["dataloader", "forward attn", "backward", "dp all reduce", "optimizer"],
    ),
    "nothing that communicates": ("loss, forward, backward", []),
    "two of one name": ("fwd_ms, fwd_time", []),
}


@pytest.mark.parametrize(("names", "operations"), OPERATIONS.values(), ids=OPERATIONS)
def test_columns_of_operations_are_those_of_times_of_parts(names: str, operations: list[str]) -> None:
    assert list(operation_columns(names.split(", ")).values()) == operations


@pytest.mark.parametrize(
    "text",
    ["rank,step,step_time_ms,std_ms,start_ms\n0,0,1,1,1\n", "step,rank0_step_ms,rank1_step_ms\n0,1,1\n"],
    ids=["rows of ranks", "columns of ranks"],
)
def test_the_times_of_whole_steps_alone_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.csv").write_text(text)

    done = run(tmp_path / "log.csv")

    assert (done.exit_code, "the time of whole steps tells no rank" in done.stderr) == (2, True)


def steps_of_ranks(late: int | None) -> list[dict[str, float]]:
    """A row for each step of a rank: milliseconds of computing and of waiting, together the same for all."""
    rng, ranks, steps = np.random.default_rng(6), 8, 30
    computed = 100 * (1 + 0.01 * rng.normal(size=(steps, ranks)))
    if late is not None:
        computed[:, late] *= 1.3
    waits = computed.max(axis=1, keepdims=True) - computed + 20
    return [
        {"rank": rank, "step": step, "compute": float(computed[step, rank]), "wait": float(waits[step, rank])}
        for step, rank in np.ndindex(steps, ranks)
    ]


def _by_column(rows: list[dict[str, float]], name: str) -> str:
    steps = sorted({row["step"] for row in rows})
    header = ",".join(["step", *(name.format(op=op, rank=rank) for rank in range(8) for op in ("compute", "wait"))])
    lines = []
    for step in steps:
        own = sorted((row for row in rows if row["step"] == step), key=lambda row: row["rank"])
        lines.append(",".join([str(step), *(str(row[op]) for row in own for op in ("compute", "wait"))]))
    return "\n".join([header, *lines])


def _nested(rows: list[dict[str, float]]) -> str:
    ranks = {
        str(rank): {"host": "n", "steps": [{k: row[k] for k in ("step", "compute", "wait")} for row in rows
                                           if row["rank"] == rank]}
        for rank in range(8)
    }  # fmt: skip
    return json.dumps({"world_size": 8, "ranks": ranks})


EXPORTS: dict[str, tuple[str, Callable[[list[dict[str, float]]], str]]] = {
    "waits without a unit": ("csv", lambda rows: "rank,step,compute,wait\n" + "".join(
        f"{row['rank']},{row['step']},{row['compute']},{row['wait']}\n" for row in rows)),
    "computing and idle time": ("csv", lambda rows: "rank,step,gpu_time_ms,idle_ms\n" + "".join(
        f"{row['rank']},{row['step']},{row['compute']},{row['wait']}\n" for row in rows)),
    "computing alone": ("csv", lambda rows: "rank,step,compute_ms\n" + "".join(
        f"{row['rank']},{row['step']},{row['compute']}\n" for row in rows)),
    "a row for each operation": ("csv", lambda rows: "rank,step,phase,ms\n" + "".join(
        f"{row['rank']},{row['step']},{op},{row[op]}\n" for row in rows for op in ("compute", "wait"))),
    "an index of ranks": ("csv", lambda rows: _by_column(rows, "{op}_ms[{rank}]")),
    "names of ranks first": ("csv", lambda rows: _by_column(rows, "rank_{rank}_{op}_ms")),
    "an object of the rank in each line": ("jsonl", lambda rows: "".join(
        json.dumps({"meta": {"rank": row["rank"]}, "step": row["step"],
                    "time": {"compute": row["compute"], "wait": row["wait"]}}) + "\n" for row in rows)),
    "steps within ranks": ("json", _nested),
}  # fmt: skip


@pytest.mark.parametrize(("ending", "text"), EXPORTS.values(), ids=EXPORTS)
@pytest.mark.parametrize("late", [None, CULPRIT])
def test_tables_of_steps_are_read_however_they_are_exported(
    tmp_path: Path, ending: str, text: Callable[[list[dict[str, float]]], str], late: int | None
) -> None:
    (tmp_path / f"steps.{ending}").write_text(text(steps_of_ranks(late)))

    found = answer(tmp_path / f"steps.{ending}")

    assert (found["kind"], found["ranks"]) == (("none", []) if late is None else ("node", [late]))


@pytest.mark.parametrize(
    ("names", "factor"), [(("data_time_s", "step_time_s"), 1), (("data_ms", "iter_time_ms"), 1000)]
)
@pytest.mark.parametrize("late", ["data", "compute", ""])
def test_data_and_whole_steps_tell_whose_data_is_late_and_nothing_of_computing(
    tmp_path: Path, names: tuple[str, str], factor: float, late: str
) -> None:
    rng = np.random.default_rng(4)
    data, compute = rng.normal(0.01, 0.001, (30, 8)), rng.normal(0.3, 0.003, (30, 8))
    data[:, CULPRIT] += 0.04 * (late == "data")
    compute[:, CULPRIT] *= 1.2 if late == "compute" else 1
    whole = np.broadcast_to((data + compute).max(axis=1, keepdims=True) + 0.02, data.shape)
    step, rank = np.divmod(np.arange(240), 8)
    columns = {"rank": rank, "step": step, names[0]: data.ravel() * factor, names[1]: whole.ravel() * factor}

    found = answer(csv(tmp_path, columns))

    assert found["ranks"] == ([CULPRIT] if late == "data" else [])
    assert found["kind"] == ("node" if late == "data" else "unknown")
    assert late == "data" or "whether one computes longer they do not tell" in found["evidence"]["reason"]


def steps_with_hidden_waits(late: str, waits: bool = True) -> Columns:
    """Eight ranks that wait for each other in the backward pass; one may be late in an operation."""
    rng = np.random.default_rng(6)
    usual = {"forward_ms": 100.0, "backward_ms": 200.0, "optimizer_ms": 30.0}
    columns = {op: length * rng.normal(1, 0.01, (30, 8)) for op, length in usual.items()}
    if late:
        columns[late][:, CULPRIT] += 33
    clock = np.zeros(8)
    for forward, backward, optimizer in zip(*columns.values(), strict=True) if waits else ():
        ready = clock + forward + backward
        backward += ready.max() + 40 - ready
        clock = clock + forward + backward + optimizer
    step, rank = np.divmod(np.arange(240), 8)
    return {"rank": rank, "step": step, **{op: times.ravel() for op, times in columns.items()}}


@pytest.mark.parametrize("late", ["forward_ms", "optimizer_ms", "backward_ms", ""])
def test_ranks_that_wait_within_an_operation_are_judged_by_what_they_do_outside_of_it(
    tmp_path: Path, late: str
) -> None:
    found = answer(csv(tmp_path, steps_with_hidden_waits(late)))

    shown = late in ("forward_ms", "optimizer_ms")
    assert found["evidence"]["waits_in"] == "backward"
    assert (found["kind"], found["ranks"]) == (("node", [CULPRIT]) if shown else ("unknown", []))
    assert shown or "computes longer within it does not show" in found["evidence"]["reason"]


@pytest.mark.parametrize("late", ["backward_ms", ""])
def test_ranks_that_do_not_wait_are_judged_by_all_that_they_do(tmp_path: Path, late: str) -> None:
    found = answer(csv(tmp_path, steps_with_hidden_waits(late, waits=False)))

    assert "waits_in" not in found["evidence"]
    assert (found["kind"], found["ranks"]) == (("node", [CULPRIT]) if late else ("none", []))


def test_operations_with_names_of_their_own_in_every_step_take_no_memory_with_the_square_of_a_file() -> None:
    steps, ranks = 20_000, 8
    step, rank = (values.ravel() for values in np.meshgrid(np.arange(steps), np.arange(ranks), indexing="ij"))
    names = [f"fwd_{number}" for number in range(steps)]

    assert waiting_operation(rank, step, step, np.full(len(step), 0.1), names) is None
