"""Files of NCCL Inspector, the PyTorch profiler and dcgm-exporter, through the command and alone."""

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ingero_analyze.diagnose import dcgm, inspector, kineto
from ingero_analyze.diagnose.sources import OperationRows, Problems, SourceError, rank_of
from ingero_contract.json_values import whole
from ingero_fleet.cli import main
from ingero_testing.collectives import Job
from ingero_testing.inspector import exports

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import interleaved

RANKS, STEPS, LATE = 4, 40, 2
STEP_US, LAG_US = 10_000.0, 600.0


def waits(late: int | None = LATE, ranks: int = RANKS) -> Any:
    """Microseconds that every rank spends in the collective of every step: the late one the least."""
    arrival = np.random.default_rng(3).normal(0, 30, (STEPS, ranks))
    if late is not None:
        arrival[:, late] += LAG_US
    return arrival.max(axis=1, keepdims=True) - arrival + 100.0


def ask(*arguments: str) -> tuple[dict[str, Any], str, int]:
    done = CliRunner().invoke(main, ["diagnose", *arguments])
    return json.loads(done.stdout) if done.exit_code == 0 else {}, done.stderr, done.exit_code


# NCCL Inspector


def line(rank: int, seq: int, micros: float, *, marked: bool = True, comm: str = "0xab", **perf: Any) -> str:
    whole = {
        "header": {"id": comm, "rank": rank, "n_ranks": RANKS, "nnodes": RANKS},
        "metadata": {
            "inspector_output_format_version": "v4.0", "hostname": f"node-{rank}", "pid": 7,
            "dump_timestamp_us": 1_748_030_377_000_000 + int(seq * STEP_US),
        },
    }  # fmt: skip
    body = {"coll_perf": {"coll": "AllReduce", "coll_sn": seq, "coll_exec_time_us": micros,
                          "coll_timing_source": "kernel_gpu"} | perf}  # fmt: skip
    return json.dumps({**(whole if marked else {}), **body})


def inspected(folder: Path, late: int | None = LATE) -> None:
    table = waits(late)
    for rank in range(RANKS):
        lines = [line(rank, seq, float(table[seq, rank])) for seq in range(STEPS)]
        (folder / f"node-{rank}-pid7.log").write_text("\n".join(lines) + "\n")


def test_inspector_names_the_rank_whose_collectives_are_short_and_its_host(tmp_path: Path) -> None:
    inspected(tmp_path)

    found, errors, status = ask("--nccl-inspector", str(tmp_path))

    assert (status, errors) == (0, "")
    assert (found["kind"], found["ranks"], found["evidence"]["nodes"]) == (
        "node",
        [LATE],
        {str(LATE): f"node-{LATE}"},
    )
    assert found["seconds_lost_per_step"] == pytest.approx(LAG_US / 1e6, rel=0.3)
    assert found["claims"]["nccl_inspector"]["cannot"]


def test_inspector_names_nobody_where_nobody_is_late(tmp_path: Path) -> None:
    inspected(tmp_path, late=None)

    assert ask("--nccl-inspector", str(tmp_path))[0]["kind"] == "none"


@pytest.mark.parametrize("form", ["lines", "one document", "packed"])
def test_inspectors_metrics_as_a_collector_writes_them_name_the_node_and_gpu(tmp_path: Path, form: str) -> None:
    bodies = exports(Job(late_ms={5: 20.0}), STEPS)
    if form == "one document":
        resources = [each for body in bodies for each in json.loads(body)["resourceMetrics"]]
        (tmp_path / "otlp.json").write_text(json.dumps({"resourceMetrics": resources}, indent=1))
    else:
        pack = gzip.compress if form == "packed" else bytes
        (tmp_path / ("otlp.json" + ".gz" * (form == "packed"))).write_bytes(pack(b"\n".join([*bodies, bodies[0]])))

    found, errors, status = ask(*map(str, tmp_path.iterdir()))

    assert (status, errors) == (0, "")
    assert (found["kind"], found["ranks"]) == ("node", ["node-1/GPU1"])
    assert found["evidence"]["nodes"] == {"node-1/GPU1": "node-1"}
    assert found["seconds_lost_per_step"] == pytest.approx(0.02, rel=0.1)
    assert found["evidence"]["left_out"]["points of other metrics"] > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"verbose": False}, "set NCCL_INSPECTOR_OTEL_VERBOSE=1"),
        ({"gpu": "GPU0"}, "node-0: several processes say GPU0"),
    ],
)
def test_inspectors_metrics_that_show_no_rank_are_refused(tmp_path: Path, given: Any, words: str) -> None:
    (tmp_path / "otlp.json").write_bytes(b"\n".join(exports(Job(late_ms={5: 20.0}), STEPS, **given)))

    _, errors, status = ask(str(tmp_path / "otlp.json"))

    assert status == 2 and words in errors


def test_inspector_lines_belong_to_the_marker_before_them() -> None:
    context, left = inspector.LineContext(), Counter[str]()
    marker = json.loads(line(1, 0, 5)) | {"dump_stats": {"coll_records": 1, "coll_dropped_since_last_dump": 9}}
    del marker["coll_perf"]

    assert inspector.take(json.dumps(marker).encode(), context, left) is None
    spent = inspector.take(line(1, 4, 250.0, marked=False).encode(), context, left)

    assert spent is not None
    assert (spent.rank, spent.seq, spent.duration, spent.process) == (1, 4, 250e-6, ("node-1", 7))
    assert left["lost by the plugin"] == 9


def test_a_communicator_is_no_host(tmp_path: Path) -> None:
    inspected(tmp_path)
    for file in tmp_path.iterdir():
        lines = [json.loads(text) for text in file.read_text().splitlines()]
        start = lines[0]["metadata"]["dump_timestamp_us"]
        for tree in lines:
            moment = tree.pop("metadata")["dump_timestamp_us"]
            tree["coll_perf"]["event_trace_ts"] = {"coll_start_ts": moment - start}
        file.write_text("\n".join(map(json.dumps, lines)))

    found = ask("--nccl-inspector", str(tmp_path))[0]

    assert found["ranks"] == [LATE]
    assert "nodes" not in found["evidence"]


@pytest.mark.parametrize("value", ["--5", "-", "-2", "5-", "", "１２", "1" * 19])
def test_a_text_that_is_no_count_is_none(value: str) -> None:
    assert whole(value) is None


def test_ranks_without_steps_leave_no_warnings(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    for rank in range(RANKS):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace(rank)))
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1e299, "dur": 1e299}
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce", "ts": 1, "dur": 1}
    (tmp_path / "rank2.json").write_text(json.dumps({"traceEvents": [event, kernel]}))

    _, errors, status = ask("--kineto", str(tmp_path))

    assert status == 0
    assert "traceEvents[0]: ts and dur: microseconds were expected" in errors
    assert not recwarn.list


def test_inspector_leaves_out_what_was_timed_on_the_host(tmp_path: Path) -> None:
    text = "\n".join(
        [line(0, 1, 5.0), line(0, 2, 5.0, coll_timing_source="collective_cpu"), json.dumps({"p2p_perf": {}})]
    )
    (tmp_path / "one.log.gz").write_bytes(gzip.compress(text.encode()))

    found, _, _ = ask("--nccl-inspector", str(tmp_path))

    assert found["evidence"]["left_out"] == {"timed on the host only": 1, "point to point": 1}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: an object was expected"),
        ("{}", "line 2: no line of NCCL Inspector"),
        (line(0, -1, 5.0), "line 2: coll_perf.coll_sn"),
        (line(0, 1, 5.0, coll_sn="--5"), "line 2: coll_perf.coll_sn"),
        (line(0, 1, -5.0), "line 2: coll_perf.coll_exec_time_us"),
        (line(0, 1, 1e300), "line 2: coll_perf.coll_exec_time_us"),
        (line(9, 1, 5.0), "line 2: header"),
        ('{"coll_perf": {}, "header": {"id": 3}}', "line 2: header"),
        ("[" * 5000, "line 2: not JSON"),
    ],
)
def test_a_bad_inspector_line_is_named_and_the_rest_is_kept(tmp_path: Path, bad: str, words: str) -> None:
    (tmp_path / "a.log").write_text("\n".join([line(0, 1, 5.0), bad, line(0, 2, 5.0)]))
    problems = Problems()

    found = inspector.read_events([str(tmp_path)], problems)

    assert len(found.rows) == 2
    assert problems.count == 1
    assert words in problems.shown[0]


# The PyTorch profiler


def trace(rank: int, late: int | None = LATE, *, compute: float | None = None, steps: bool = True) -> dict[str, Any]:
    """A rank's trace with one NCCL kernel and one of its own in every step, on a clock of its own."""
    table, shift = waits(late), rank * 5e6
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "args": {}}]
    for step in range(STEPS):
        at = shift + step * STEP_US
        if steps:
            events.append({"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{step}", "ts": at,
                           "dur": STEP_US})  # fmt: skip
        if compute is not None:
            events.append({"ph": "X", "cat": "kernel", "name": "sgemm", "ts": at + 1, "dur": compute})
        events.append({
            "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ts": at + 6000,
            "dur": float(table[step, rank]),
            "args": {"Collective name": "allreduce", "Process Group Name": "0",
                     "Process Group Ranks": "[0, 1, 2, 3]", "Seq": step + 1},
        })  # fmt: skip
    return {
        "distributedInfo": {"rank": rank, "world_size": RANKS},
        "host_name": f"node-{rank}",
        "traceEvents": events,
    }


def traced(folder: Path, packed: bool = False, **more: Any) -> None:
    for rank in range(RANKS):
        data = json.dumps(trace(rank, **more)).encode()
        name = f"worker{rank}.1700000000000.pt.trace.json"
        (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)


def pipeline_traces(folder: Path, told: bool, **more: Any) -> None:
    """Traces of a pipeline of three stages, each with two replicas; with `told`, events of sends name the peer."""
    columns = interleaved(np.random.default_rng(2), 3, 2, parts=3, steps=10, **more).arrays()
    events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(6)}
    names = ("start", "rank", "op", "kind", "duration", "step", "group", "seq")
    for start, rank, op, kind, duration, step, group, seq in sorted(
        zip(*(columns[name].tolist() for name in names), strict=True)
    ):
        event = {"ph": "X", "cat": "kernel", "name": op, "ts": start * 1e6, "dur": duration * 1e6}
        if kind == "collective":
            members = [rank % 2, rank % 2 + 2, rank % 2 + 4]
            args: dict[str, Any] = {"Collective name": "coalesced", "Process Group Name": str(rank % 2)}
            if op == "grads-sync":
                members = [rank // 2 * 2, rank // 2 * 2 + 1]
                args = {"Collective name": "allreduce", "Process Group Name": f"stage {rank // 2}", "Seq": int(seq)}
            elif told:
                lower = int(group.removeprefix("back").removeprefix("forth").partition("-")[0])
                args |= {
                    "Collective name": op,
                    {"send": "Dst Rank", "recv": "Src Rank"}[op]: 2 * lower + 1 - rank // 2,
                }
            event |= {"name": f"ncclDevKernel_{'AllReduce' if op == 'grads-sync' else 'SendRecv'}",
                      "args": {**args, "Process Group Ranks": str(members)}}  # fmt: skip
        if not events[rank] or events[rank][-1]["step"] != step:
            events[rank].append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "dur": 1e5,
                                 "ts": start * 1e6 - 1, "step": step})  # fmt: skip
        events[rank].append({**event, "step": step})
    for rank, own in events.items():
        content = {"distributedInfo": {"rank": rank, "world_size": 6}, "traceEvents": own}
        (folder / f"rank{rank}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("told", [True, False], ids=["with peers", "in batches"])
@pytest.mark.parametrize(("stall", "ranks"), [(0.03, [3]), (0.0, [])])
def test_traces_of_a_pipeline_show_who_pauses_by_its_sends_and_receives(
    tmp_path: Path, told: bool, stall: float, ranks: list[int]
) -> None:
    pipeline_traces(tmp_path, told, culprit=3, stall=stall)

    found, _, status = ask("--kineto", str(tmp_path))

    assert (status, found["ranks"]) == (0, ranks)
    assert "left_out" not in found["evidence"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("steps", [False, True])
def test_traces_name_the_rank_whose_nccl_kernels_are_short(tmp_path: Path, packed: bool, steps: bool) -> None:
    traced(tmp_path, packed, steps=steps)

    found, errors, status = ask("--kineto", str(tmp_path))

    assert (status, errors) == (0, "")
    assert (found["kind"], found["ranks"], found["evidence"]["nodes"]) == (
        "node",
        [LATE],
        {str(LATE): f"node-{LATE}"},
    )


@pytest.mark.parametrize(("ranks", "size"), [(8, 2), (16, 4)], ids=["sizes differ", "one size"])
@pytest.mark.parametrize("late", [None, 2])
def test_numbers_of_several_communicators_are_no_steps(
    tmp_path: Path, late: int | None, ranks: int, size: int
) -> None:  # fmt: skip
    """Small groups of ranks meet after each of four layers, those with the same place in one once a step."""
    rng, now = np.random.default_rng(0), np.zeros(ranks)
    lines: list[list[str]] = [[] for _ in range(ranks)]

    def meet(name: str, group: npt.NDArray[np.int64], number: int) -> None:
        for one in np.unique(group).tolist():
            members = np.flatnonzero(group == one)
            end = now[members].max() + 500.0
            for place, rank in enumerate(members.tolist()):
                lines[rank].append(json.dumps({
                    "header": {"id": f"{name}{one}", "rank": place, "n_ranks": len(members)},
                    "metadata": {"hostname": "node-0", "pid": rank, "dump_timestamp_us": end},
                    "coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_exec_time_us": end - now[rank]},
                }))  # fmt: skip
            now[members] = end

    for step in range(24):
        for layer in range(4):
            now += 5000.0 + 50.0 * rng.normal(size=ranks) + 1500.0 * (np.arange(ranks) == late)
            meet("tensor", np.arange(ranks) // size, 4 * step + layer)
        meet("data", np.arange(ranks) % size, step)
    for rank, own in enumerate(lines):
        (tmp_path / f"node-0-pid{rank}.log").write_text("\n".join(own))

    found = ask("--nccl-inspector", str(tmp_path))[0]

    assert found["ranks"] == ([] if late is None else [f"node-0:{late}"])
    assert (found["kind"], found["evidence"]["steps"]) == ("none" if late is None else "node", 24)


@pytest.mark.parametrize("late", [None, LATE])
def test_kernels_of_one_name_before_and_after_a_wait_do_not_hide_it(tmp_path: Path, late: int | None) -> None:
    """Layers with a collective after each: a rank that stands still is late in the first, and all wait there."""
    rng = np.random.default_rng(0)
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    now = 0.0
    for step in range(20):
        for rank in range(RANKS):
            events[rank].append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": now,
                                 "dur": 1e5})  # fmt: skip
        for layer in range(4):
            begin = now + 1000.0 + 5000.0 * (np.arange(RANKS) == late) * (layer == 0)
            ready = begin + 5000.0 + 20.0 * rng.normal(size=RANKS)
            now = float(ready.max()) + 500.0
            for rank in range(RANKS):
                events[rank] += [
                    {"ph": "X", "cat": "kernel", "name": "sgemm", "ts": begin[rank],
                     "dur": ready[rank] - begin[rank]},
                    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "ts": ready[rank],
                     "dur": now - ready[rank]},
                ]  # fmt: skip
    for rank in range(RANKS):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events[rank]}))

    found = ask("--kineto", str(tmp_path))[0]

    assert (found["kind"], found["ranks"]) == (("none", []) if late is None else ("node", [late]))
    if late is not None:
        assert found["seconds_lost_per_step"] == pytest.approx(5e-3, rel=0.1)


@pytest.mark.parametrize("alone", [True, False])
def test_a_trace_that_alone_lacks_or_has_steps_is_named_and_hides_no_other_rank(tmp_path: Path, alone: bool) -> None:
    for rank in range(RANKS):
        value = trace(rank, compute=5600.0 if rank == LATE else 5000.0, steps=(rank == 0) == alone)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(value))

    found, errors, status = ask("--kineto", str(tmp_path))

    assert (status, found["kind"], found["ranks"], found["problems"]["count"]) == (0, "node", [LATE], 1)
    assert f"rank0.json: left out: {'steps are' if alone else 'no ProfilerStep is'} in this trace" in errors


def test_traces_name_nobody_where_nobody_is_late(tmp_path: Path) -> None:
    traced(tmp_path, late=None, compute=5000.0)

    assert ask("--kineto", str(tmp_path))[0]["kind"] == "none"


def test_traces_name_the_rank_that_computes_longer(tmp_path: Path) -> None:
    for rank in range(RANKS):
        value = trace(rank, compute=5600.0 if rank == LATE else 5000.0)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(value))

    found = ask("--kineto", str(tmp_path))[0]

    assert (found["kind"], found["ranks"], found["evidence"]["by"]) == ("node", [LATE], "compute")


def test_a_rank_that_is_longer_in_some_kinds_of_kernels_only_is_not_named(tmp_path: Path) -> None:
    for rank in range(RANKS):
        value = trace(rank, None, compute=4200.0 if rank == LATE else 3600.0)
        begins = [event["ts"] for event in value["traceEvents"] if event.get("name") == "sgemm"]
        value["traceEvents"] += [
            {"ph": "X", "cat": "kernel", "name": name, "ts": at + after, "dur": duration}
            for at in begins
            for name, after, duration in (
                (f"void flash_fwd<{rank}>(float)", 4300, 1000.0),
                ("grouped_gemm", 5400, 400.0 if rank == LATE else 200.0),
            )
        ]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(value))

    found = ask("--kineto", str(tmp_path))[0]
    table = CliRunner().invoke(main, ["diagnose", "--table", "--kineto", str(tmp_path)]).stdout

    assert (found["kind"], found["ranks"], found["evidence"]["possible"]) == ("unknown", [], [LATE])
    assert list(found["evidence"]["longer_in"][str(LATE)]) == ["sgemm", "grouped_gemm"]
    assert found["evidence"]["as_fast_as_peers_in"] == {str(LATE): ["flash_fwd"]}
    assert table.startswith(f"rank {LATE} has more to do in sgemm, grouped_gemm, or")


@pytest.mark.parametrize("slow", [True, False])
def test_a_rank_without_a_trace_is_said_and_possible_if_the_others_wait_together(tmp_path: Path, slow: bool) -> None:
    for rank in range(RANKS - 1):
        value = trace(rank, None, compute=5000.0)
        for event in value["traceEvents"]:
            if "Seq" in event.get("args", {}):
                event["dur"] = 3000.0 if slow else 300.0
                event["args"]["Group size"] = RANKS
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(value))

    found, errors, status = ask("--kineto", str(tmp_path))
    table = CliRunner().invoke(main, ["diagnose", "--table", "--kineto", str(tmp_path)]).stdout

    assert (status, found["kind"], found["ranks"]) == (0, "unknown" if slow else "none", [])
    assert found["evidence"]["not_recorded"] == {"count": 1, "first": [RANKS - 1]}
    assert found["evidence"].get("possible") == ([RANKS - 1] if slow else None)
    assert f"1 of {RANKS} ranks were not recorded: {RANKS - 1}" in errors
    assert ("they wait together" in table) == slow


def test_a_late_rank_is_named_although_another_one_was_not_recorded(tmp_path: Path) -> None:
    for rank in range(RANKS):
        if rank != (LATE + 1) % RANKS:
            (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace(rank)))

    found = ask("--kineto", str(tmp_path))[0]

    assert (found["kind"], found["ranks"], found["evidence"]["not_recorded"]["count"]) == ("node", [LATE], 1)


@pytest.mark.parametrize("option", ["--kineto", "--nccl-inspector"])
def test_a_folder_without_files_of_the_kind_says_how_they_are_named(tmp_path: Path, option: str) -> None:
    (tmp_path / "rank0.bin").write_text("junk")

    done = CliRunner().invoke(main, ["diagnose", option, str(tmp_path)])

    assert done.exit_code == 2
    assert "nothing in these files that can be judged; files whose names end in ." in done.stderr


def gloo(rank: int, late: int = LATE) -> dict[str, Any]:
    """A rank of a job on processors: steps and gloo's operations, no kernels."""
    table = waits(late)
    events = []
    for step in range(STEPS):
        at = step * STEP_US
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at,
                       "dur": STEP_US - 1})  # fmt: skip
        events.append({"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "ts": at + 5000,
                       "dur": float(table[step, rank])})  # fmt: skip
    return {"distributedInfo": {"backend": "gloo", "rank": rank}, "traceEvents": events}


def test_traces_of_a_job_on_processors_are_judged_by_gloo(tmp_path: Path) -> None:
    for rank in range(RANKS):
        (tmp_path / f"t{rank}.json").write_text(json.dumps(gloo(rank)))

    found = ask("--kineto", str(tmp_path))[0]

    assert (found["kind"], found["ranks"]) == ("node", [LATE])


def test_what_a_processor_computes_while_an_operation_is_under_way_is_work(tmp_path: Path) -> None:
    """A gradient is summed in another thread while the backward pass goes on, which takes one rank longer."""
    rng = np.random.default_rng(3)
    for rank in range(RANKS):
        events = []
        for step in range(STEPS):
            at, spent = step * STEP_US, 4000 * (1 + 0.2 * (rank == LATE) + rng.normal(0, 0.005))
            for kind, name, begin, duration, thread in (
                ("user_annotation", f"ProfilerStep#{step}", at, STEP_US - 1, 1),
                ("user_annotation", "gloo:all_reduce", at + 1000, 8900, 2),
                ("cpu_op", "aten::mm", at + 1000, spent, 1),
            ):
                events.append({"ph": "X", "cat": kind, "name": name, "ts": begin, "dur": duration, "tid": thread})
        value = {"distributedInfo": {"backend": "gloo", "rank": rank}, "traceEvents": events}
        (tmp_path / f"t{rank}.json").write_text(json.dumps(value))

    found = ask("--kineto", str(tmp_path))[0]

    assert (found["kind"], found["ranks"], found["evidence"]["by"]) == ("node", [LATE], "compute")


def test_cycles_of_a_schedule_that_are_files_of_their_own_are_one_recording(tmp_path: Path) -> None:
    """With `repeat` the profiler writes a file for every cycle of a rank, and goes on counting steps."""
    for rank in range(RANKS):
        whole = gloo(rank)
        for cycle in range(2):
            half = whole["traceEvents"][cycle * STEPS : (cycle + 1) * STEPS]
            (tmp_path / f"host_{rank}.{cycle}.pt.trace.json").write_text(json.dumps(whole | {"traceEvents": half}))

    found = ask("--kineto", str(tmp_path))[0]

    assert (found["kind"], found["ranks"], found["evidence"]["steps"]) == ("node", [LATE], STEPS)
    assert not found["problems"]["count"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "there is no list of traceEvents"),
        ('{"traceEvents": [], "distributedInfo": {"rank": 9}}', "neither collectives nor kernels"),
        (json.dumps(trace(0)), "rank 0 was read from"),
        (b"\x1f\x8b\x08broken", "not gzip"),
    ],
)
def test_a_bad_trace_is_named_and_the_others_are_judged(tmp_path: Path, text: str | bytes, words: str) -> None:
    traced(tmp_path)
    bad = tmp_path / "zz.json"
    bad.write_bytes(text if isinstance(text, bytes) else text.encode())

    found, errors, _ = ask("--kineto", str(tmp_path))

    assert found["ranks"] == [LATE]
    assert found["problems"]["count"] == 1
    assert "zz.json" in errors
    assert words in errors


def test_a_bad_event_is_named_with_its_place() -> None:
    tree = trace(0)
    tree["traceEvents"] += [7, {"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}]
    problems = Problems()

    found = kineto.trace_of(tree, Path("t.json"), problems)

    assert len(found.collectives) == STEPS
    assert [text.split(": ", 1)[1].split(":")[0] for text in problems.shown] == ["traceEvents[81]", "traceEvents[82]"]


def test_a_trace_that_unpacks_to_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingero_analyze.diagnose.sources.MAX_FILE_BYTES", 1 << 20)
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(b" " * (4 << 20)))

    _, errors, status = ask("--kineto", str(tmp_path))

    assert status == 2
    assert "rank0.json.gz: larger than 1048576 bytes" in errors


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["kernel", "user_annotation", "gpu_user_annotation", "Kernel"])},
    optional={
        "name": st.sampled_from(["ncclKernel_X", "gloo:all_reduce", "ProfilerStep#1", "k"]) | st.text(max_size=5),
        "ts": ANYTHING, "dur": ANYTHING,
        "args": st.dictionaries(
            st.sampled_from(["Collective name", "Process Group Name", "Process Group Ranks", "Seq"]), ANYTHING
        ),
    },
)  # fmt: skip


@given(st.lists(EVENTS | ANYTHING, max_size=6), ANYTHING)
def test_traces_with_any_values_give_rows_or_a_refusal(events: Any, described: Any) -> None:
    for tree in ({"traceEvents": events, "distributedInfo": described, "host_name": described}, events, described):
        rows = OperationRows()
        try:
            kineto.add_work(rows, [kineto.fill(rows, kineto.trace_of(tree, Path("rank3.json"), Problems()))])
        except SourceError:
            continue
        rows.recorded()


@given(st.dictionaries(st.sampled_from(["header", "metadata", "coll_perf", "dump_stats", "p2p_perf"]), ANYTHING))
def test_inspector_lines_with_any_values_give_a_row_or_a_refusal(tree: Any) -> None:
    try:
        inspector.take(json.dumps(tree).encode(), inspector.LineContext(), Counter())
    except SourceError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12), ("comm_lib_trace_3", 3), ("node1.trace7", 7), ("rank2.pt.trace.json.gz", 2),
        ("host7_rank03.json", 3), ("worker0.1700000000000.pt.trace.json", None), ("notes.txt", None),
    ],
)  # fmt: skip
def test_the_rank_in_a_files_name(name: str, rank: int | None) -> None:
    assert rank_of(Path(name)) == rank


# dcgm-exporter

PAGE = """# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
"""


def page(host: str, *, clock: float = 1980, reasons: int = 0, xid: int = 0, util: float = 99) -> str:
    labels = f'gpu="0",UUID="GPU-{host}",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="{host}"'
    return PAGE + (
        f"DCGM_FI_DEV_SM_CLOCK{{{labels}}} {clock}\nDCGM_FI_DEV_GPU_UTIL{{{labels}}} {util}\n"
        f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{labels}}} {reasons}\nDCGM_FI_DEV_XID_ERRORS{{{labels}}} {xid}\n"
        f"DCGM_FI_DEV_THERMAL_VIOLATION{{{labels}}} 3000000000\n"
        f"DCGM_FI_DEV_POWER_VIOLATION{{{labels}}} 9223372036854775794\nother_metric 3\n"
    )


def gpus(*pages: str) -> tuple[list[dcgm.DcgmSample], Problems]:
    problems, found = Problems(), dict[tuple[str, str], dcgm.DcgmSample]()
    for number, text in enumerate(pages):
        dcgm.parse(text, f"page{number}", found, problems)
    return list(found.values()), problems


def test_throttled_gpus_say_by_what() -> None:
    found, problems = gpus(
        page("a"), page("b", reasons=0x40 | 0x8 | 0x1), page("c", clock=1200), page("d", xid=79),
        page("e", clock=300, util=0),
    )  # fmt: skip

    held = {item.gpu.host: item.why for item in dcgm.throttled_gpus(found)}

    assert held == {
        "b": ("hw_slowdown", "hw_thermal"),
        "c": ("clock 1200 MHz where its like run at 1980",),
        "d": ("xid 79",),
    }
    assert problems.count == 0
    assert found[0].violations == {"thermal": 3.0}


def test_a_throttled_gpu_next_to_a_late_rank_is_its_reason(tmp_path: Path) -> None:
    inspected(tmp_path)
    pages = [tmp_path / f"dcgm{rank}.txt" for rank in range(RANKS)]
    for rank, file in enumerate(pages):
        file.write_text(page(f"node-{rank}", reasons=0x20 if rank == LATE else 0))
    logs = [str(tmp_path / f"node-{rank}-pid7.log") for rank in range(RANKS)]
    options = [part for file in pages for part in ("--dcgm", str(file))]

    found = ask(*(part for log in logs for part in ("--nccl-inspector", log)), *options)[0]

    assert found["ranks"] == [LATE]
    assert found["gpu"]["throttled"][0]["ranks"] == [str(LATE)]
    assert "a cause of what the verdict says" in found["gpu"]["reading"]
    assert set(found["claims"]) == {"nccl_inspector", "dcgm"}


def test_where_waits_name_no_rank_a_throttled_gpu_is_shown(tmp_path: Path) -> None:
    inspected(tmp_path, late=None)
    (tmp_path / "dcgm.prom").write_text(page("node-1", reasons=0x80))

    found = ask("--nccl-inspector", str(tmp_path), "--dcgm", str(tmp_path / "dcgm.prom"))[0]

    assert (found["kind"], found["ranks"]) == ("none", [])
    assert found["gpu"]["throttled"][0]["why"] == ["hw_power_brake"]
    assert "inside of collectives" in found["gpu"]["reading"]


def test_pages_can_be_judged_alone_and_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "dcgm.prom").write_text(page("node-1", reasons=0x80))

    done = CliRunner().invoke(main, ["diagnose", "--dcgm", str(tmp_path / "dcgm.prom"), "--table"])

    assert done.exit_code == 0
    assert "GPU 0 of node-1: hw_power_brake" in done.stdout
    assert done.stdout.startswith("GPUs are throttled.")


def test_a_power_limit_that_half_of_the_gpus_have_reached_is_their_load() -> None:
    found, _ = gpus(*(page(f"node-{one}", reasons=0x4, clock=1450) for one in range(3)), page("hot", reasons=0x44))
    assert [(item.gpu.host, item.why) for item in dcgm.throttled_gpus(found)] == [("hot", ("hw_thermal",))]

    found, _ = gpus(page("slow", reasons=0x4, clock=900), *(page(f"node-{one}", clock=1450) for one in range(3)))
    (only,) = dcgm.throttled_gpus(found)
    assert (only.gpu.host, only.why[0]) == ("slow", "sw_power_cap")

    found, _ = gpus(*(page(f"n{one}", reasons=0x4, clock=900 if one == 1 else 1450) for one in range(4)))
    (only,) = dcgm.throttled_gpus(found)
    assert (only.gpu.host, only.why) == ("n1", ("clock 900 MHz where its like run at 1450",))


@pytest.mark.parametrize(
    "bad",
    [
        'DCGM_FI_DEV_SM_CLOCK{gpu="0" 5',
        'DCGM_FI_DEV_SM_CLOCK{gpu="0,Hostname="x"} 5',
        'DCGM_FI_DEV_SM_CLOCK{gpu="0"} fast',
        "DCGM_FI_DEV_SM_CLOCK 5",
        "DCGM_FI_DEV_SM_CLOCK" + "{" * 100_000,
    ],
)
def test_a_bad_line_of_a_page_is_named_and_the_rest_is_kept(bad: str) -> None:
    found, problems = gpus(bad + "\n" + page("a", reasons=0x4))

    assert problems.count == 1
    assert problems.shown[0].startswith("page0: line 1: ")
    assert [item.why for item in dcgm.throttled_gpus(found)] == [("sw_power_cap",)]


@given(st.text(st.sampled_from('DCGM_FI_DEV_SM_CLOCK{}="0,\\ .19\n'), max_size=80))
def test_pages_of_any_text_are_read_to_their_end(text: str) -> None:
    found, _ = gpus(text, "DCGM_FI_DEV_SM_CLOCK{" + text)

    dcgm.throttled_gpus(found)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "xn--"])
def test_a_name_that_no_host_can_have_is_said(host: str) -> None:
    for flag, place in (("--dcgm", f"http://{host}/metrics"), ("--ras", f"{host}:28028")):
        _, errors, status = ask(flag, place)

        assert status == 2
        assert place in errors
        assert "Traceback" not in errors


def test_an_address_that_does_not_answer_is_named() -> None:
    _, errors, status = ask("--dcgm", "http://127.0.0.1:1/metrics")

    assert status == 2
    assert "http://127.0.0.1:1/metrics" in errors


def test_two_kinds_of_files_at_once_are_refused() -> None:
    _, errors, status = ask("--kineto", "a", "--nccl-inspector", "b")

    assert status == 2
    assert "cannot be judged together" in errors
    assert ask()[2] == 2


def test_of_traces_kernels_are_counted_and_not_the_sums_that_stand_for_them() -> None:
    answer = {"kind": "stage_imbalance", "evidence": {"stage_ranks": [1], "operations_over_others": 1.5}}
    counted = kineto.with_kernel_counts(answer, {"0": 100, "1": 101, "2": 100})
    assert counted["evidence"]["operations_over_others"] == 1.01
    assert kineto.with_kernel_counts(answer, {"0": 100, "2": 100}) == answer
