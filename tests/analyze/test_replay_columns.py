"""Histories of other tools: which columns hold what, which nodes are compared, and which nodes fell silent."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_analyze.replay.column_names import measure_named, preferred, unit_of
from ingero_analyze.replay.columns import recognised
from ingero_analyze.replay.judge import replay
from ingero_analyze.replay.reading import Reading
from ingero_analyze.replay.recorded_history import RecordedHistory
from ingero_contract.identifiers import node_key
from ingero_detect.nodes.detector import Detector
from ingero_detect.nodes.fingerprint import state_hash
from ingero_detect.nodes.observation import ACTIVE, Observation
from ingero_detect.nodes.parameters import Parameters
from ingero_fleet.cli import main
from ingero_fleet.recording import MERGEABLE, TickRecorder

START = 1_767_225_600
"""2026-01-01, seconds."""


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, ["replay", *map(str, arguments), "--tick", "10"], terminal_width=300)


def judged(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def two_jobs(header: str, first: str = "A", second: str = "B") -> str:
    """Two jobs of eight nodes; the second one does less from tick 80 on."""
    random = np.random.default_rng(0)
    lines = [f"time,node,rate,{header}"]
    for tick in range(130):
        for node in range(16):
            rate = 100 * np.exp(random.normal(0, 0.02)) * (0.6 if node >= 8 and tick >= 80 else 1)
            lines.append(f"{tick * 10},n{node:02d},{rate:.2f},{second if node >= 8 else first}")
    return "\n".join(lines) + "\n"


def slow_node(header: str, line: str) -> str:
    """Six nodes of which n2 loses 40 % from tick 70 to 100."""
    random = np.random.default_rng(3)
    lines = [header]
    for tick in range(120):
        for node in range(6):
            rate = 100 * np.exp(0.03 * random.normal()) * (0.6 if node == 2 and 70 <= tick < 100 else 1)
            moment = np.datetime64(START + 10 * tick, "s")
            lines.append(line.format(s=10 * tick, epoch=START + 10 * tick, iso=moment, node=f"n{node}", rate=rate,
                                     step=1 / rate, ms=1000 / rate))  # fmt: skip
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("header", ["cohort", "Job ID", "workload", "GPU Name", "stage", "cluster"])
def test_nodes_are_compared_only_within_what_a_column_says_they_share(tmp_path: Path, header: str) -> None:
    file = tmp_path / "history.csv"
    file.write_text(two_jobs(header))

    found = judged(file)

    assert found["episodes"] == []
    assert found["summary"]["cohorts"] == 2
    assert [header] in found["summary"]["columns"]["used"].values()
    assert found["summary"]["columns"]["ignored"] == []


@pytest.mark.parametrize(
    ("role", "headers"),
    [
        ("cohort", ["cohort"]),
        ("job_id", ["job", "job_id", "jobid", "slurm_job_id", "SLURM_JOBID", "Job ID"]),
        ("workload_type", ["workload", "workload_type"]),
        ("gpu_model", ["model", "gpu_model", "GPU Name", "modelName"]),
        ("stage", ["stage", "pipeline_stage"]),
        ("cluster", ["cluster", "cluster_id"]),
    ],
)
def test_what_nodes_share_is_known_by_the_name_of_its_column(role: str, headers: list[str]) -> None:
    for header in headers:
        assert recognised(["time", "node", "rate", header], {}).roles[role] == (header,)


def test_columns_of_a_cohort_count_together_and_the_output_names_them(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    lines = two_jobs("job,cohort,colour", "A,x,red", "B,x,blue").splitlines()
    file.write_text("\n".join(line.replace(",A,x", ",A,y") if ",n01," in line else line for line in lines))

    summary, text = judged(file)["summary"], " ".join(run(file).stdout.split())

    assert summary["columns"]["used"] | {"job_id": ["job"], "cohort": ["cohort"]} == summary["columns"]["used"]
    assert summary["columns"]["ignored"] == ["colour"]
    assert (summary["cohorts"], summary["small_cohorts"]) == (3, {"A/y": 1})
    assert "3 cohorts by job, cohort" in text
    assert "columns not used: colour" in text
    assert "1 node cannot be judged, in 1 cohort with fewer than 3" in text


def test_a_small_cohort_drops_the_model_and_the_stage_as_it_does_in_fleet(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    lines = slow_node("time,node,rate,job,gpu_model", "{s},{node},{rate:.3f},A,{node}").splitlines()
    models = {"n0": "H100", "n1": "H200", "n2": "B200"}
    models |= {f"n{number + 3}": model for number, model in enumerate(models.values())}
    file.write_text("\n".join(line[:-2] + models.get(line[-2:], line[-2:]) for line in lines))

    found = judged(file)

    (episode,) = found["episodes"]
    assert (episode["node"], episode["cohort"], episode["evidence"]["merged"]) == ("n2", "A/*/*/*", True)
    assert found["summary"]["small_cohorts"] == {}


def test_a_node_that_moves_to_another_job_is_learnt_again(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    lines = two_jobs("job").splitlines()
    moved = []
    for line in lines[1:]:
        moment, node, rate, job = line.split(",")
        slow = node == "n03" and int(moment) >= 800
        moved.append(f"{moment},{node},{float(rate) * (0.6 if slow else 1):.2f},{'C' if slow else job}")
    file.write_text("\n".join([lines[0], *moved]))

    found = judged(file)

    assert found["episodes"] == []
    assert found["summary"]["small_cohorts"] == {"C": 1}


def test_a_column_of_metrics_makes_no_cohorts_and_one_of_singles_is_told(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    file.write_text(slow_node("time,node,rate,loss,job", "{s},{node},{rate:.3f},{ms:.5f},{node}"))

    text = " ".join(run(file).stdout.split())

    assert "6 cohorts by job" in text
    assert "6 nodes cannot be judged, in 6 cohorts with fewer than 3 nodes" in text
    assert "columns not used: loss" in text
    assert [episode["node"] for episode in judged(file, "--column", "job_id=")["episodes"]] == ["n2"]


def test_a_job_that_changes_all_the_time_judges_nobody_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    file.write_text(slow_node("time,node,rate,job", "{s},{node},{rate:.3f},{s}"))

    text = " ".join(run(file).stdout.split())

    assert "120 cohorts by job" in text
    assert "nobody is judged: no node worked in one cohort for as long as the warm-up" in text


@pytest.mark.parametrize(
    ("header", "line", "note"),
    [
        ("timestamp,hostname,throughput", "{epoch},{node},{rate}", ""),
        ("Timestamp (ms),Host Name,Tokens/s", "{epoch}000,{node},{rate}", "times are milliseconds since 1970"),
        ("timestamp,host,tokens_per_second", "{epoch}000,{node},{rate}", "times are milliseconds since 1970"),
        ("ts,instance,train_samples_per_second", "{epoch}000000,{node},{rate}", "times are microseconds since 1970"),
        ("time,node_name,TFLOP/s/GPU", "{epoch}000000000,{node},{rate}", "times are nanoseconds since 1970"),
        ("time,node,Step Time (ms)", "{iso}Z,{node},{ms}", ""),
        ("time,node,step_time", "{iso}+00:00,{node},{step}", ""),
        ("time;node;s/it", "{iso};{node};{step}", "times without a zone are taken as UTC"),
        ("_time\tserver\telapsed time per iteration (ms)", "{iso} UTC\t{node}\t{ms}", ""),
        ("time,node,iteration_time_us", "{iso}.000,{node},{ms}e3", "times without a zone are taken as UTC"),
    ],
)
def test_histories_of_ordinary_tools_are_read_without_renaming(
    tmp_path: Path, header: str, line: str, note: str
) -> None:
    file = tmp_path / "history.csv"
    file.write_text(slow_node(header, line))

    found = judged(file)

    (episode,) = found["episodes"]
    assert episode["node"] == "n2"
    assert found["summary"]["notes"] == ([note] if note else [])
    assert episode["evidence"]["expected"] == pytest.approx(100, rel=0.1)
    assert str(episode["start"]).startswith(str(START + 690) if "{epoch}," in line else "2026-01-01T00:11:30")


@pytest.mark.parametrize(
    ("names", "measure"),
    [
        (
            "busbw busbw_gbps bandwidth_gb_s performance speed efficiency ops/s kernel_rate step_rate gemm_tflops",
            "rate",
        ),
        ("tokens_per_gpu_per_sec tokens/gpu/s avg_tokens_per_second gpu_util_avg achieved_tflops gflop/s", "rate"),
        (
            "avg_step_time step_time_p50 step_time_ms_mean train/mean_step_time steptime batch_duration",
            "step_seconds",
        ),
        ("kernel_time_us iteration_latency p50_step_ms p50_ms median_seconds", "step_seconds"),
        ("gpu_compute_ms fwd_bwd_time forward_backward_time fwd_bwd_ms latency_ms", "step_seconds"),
        ("normalized_throughput relative_speed compute_efficiency throughput_tokens token_throughput", "rate"),
        ("allreduce_busbw_gbps nccl_all_gather_bw bus_bw output_tokens_per_s model_flops_utilization", "rate"),
        ("latency p99_latency_ms latency_p50 step_time_p99 duration time_this_iter_s", "step_seconds"),
        ("power power_w gpu_power_watts DCGM_FI_DEV_POWER_USAGE powerWatts avg_gpu_power tput", "rate"),
        ("dcgm.sm_active system/gpu_0_utilization_percentage system/gpu.0.powerWatts", "rate"),
        ("learning_rate error_rate allreduce_time_ms rx_bandwidth mean p50 value power_limit", None),
        ("memory_bandwidth_gbps relative_power", None),
    ],
)
def test_names_tell_what_values_are(names: str, measure: str | None) -> None:
    assert {name: measure_named(name) for name in names.split()} == dict.fromkeys(names.split(), measure)


def test_a_latency_that_may_be_of_anything_comes_after_the_time_of_a_step() -> None:
    named = [("step_seconds", "latency_ms"), ("step_seconds", "step_time_ms"), ("rate", "mfu")]

    assert (preferred(named), preferred(named[:1])) == (named[1:2], named[:1])


def test_of_statistics_of_the_same_the_median_comes_before_the_mean() -> None:
    named = [("step_seconds", f"step_time_{statistic}") for statistic in ("mean", "p50")]

    assert preferred(named) == named[1:]
    assert [unit_of(f"step_time_{unit}") for unit in ("mean_ms", "ms_mean")] == [1e-3, 1e-3]


@pytest.mark.parametrize(("scale", "unit"), [(1000, "milliseconds"), (1_000_000_000, "nanoseconds")])
def test_times_of_several_units_in_one_file_are_each_taken_by_their_size(
    tmp_path: Path, scale: int, unit: str
) -> None:
    lines = slow_node("time,node,rate", "{epoch},{node},{rate:.3f}").splitlines()
    parts = [line.partition(",") for line in lines[1:]]
    mixed = [f"{int(epoch) * (1 if rest < 'n3' else scale)},{rest}" for epoch, _, rest in parts]
    (tmp_path / "same.csv").write_text("\n".join(lines))
    (tmp_path / "mixed.csv").write_text("\n".join([lines[0], *mixed]))

    same, found = judged(tmp_path / "same.csv"), judged(tmp_path / "mixed.csv")

    (expected,), (episode,) = same["episodes"], found["episodes"]
    assert (episode["node"], episode["severity"]) == (expected["node"], expected["severity"])
    assert datetime.fromisoformat(episode["start"]).timestamp() == expected["start"]
    assert found["summary"]["notes"] == [f"times are seconds and {unit} since 1970"]
    assert found["summary"]["doubts"] == []


@pytest.mark.parametrize(("moment", "shown"), [("{epoch}", "2026-01-01 00:"), ("{s}", "690")])
def test_numbers_that_can_only_be_dates_are_shown_as_such(tmp_path: Path, moment: str, shown: str) -> None:
    (tmp_path / "history.csv").write_text(slow_node("time,node,rate", moment + ",{node},{rate}"))

    done = run(tmp_path / "history.csv", "--plot", tmp_path / "plot.svg")
    label = "hours since 2026-01-01 00:00 UTC" if moment == "{epoch}" else "seconds"

    assert f"│ {shown}" in done.stdout
    assert f"<!-- {label} -->" in (tmp_path / "plot.svg").read_text()


def test_a_row_of_1970_is_said_to_be_out_of_place(tmp_path: Path) -> None:
    lines = slow_node("time,node,rate", "{epoch},{node},{rate}").splitlines()
    (tmp_path / "history.csv").write_text("\n".join([lines[0], "0,n1,100", *lines[1:]]))

    found = judged(tmp_path / "history.csv")

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    assert found["summary"]["doubts"] == ["the rows span 56 years: are all times right?"]


@pytest.mark.parametrize(
    ("names", "chosen", "words"),
    [
        (
            ["time", "host", "server", "rate"],
            {},
            "could all be the node; choose one: --column node=host or",
        ),
        (
            ["Time", "node-1", "node-2"],
            {},
            "where each node has a column of its own, say what these hold with --wide",
        ),
        (["time", "rate", "node-1"], {}, "there is no column 'node' (there are: time, rate, node-1); choose one"),
        (["time", "node", "heat"], {}, "there are: time, node, heat); choose one with --column rate=heat (larger"),
        (
            ["when", "node", "rate"],
            {},
            "no column 'time' (there are: when, node, rate); choose one",
        ),
        (["time", "node", "rate"], {"rate": ["speed"]}, "no column 'speed'"),
    ],
)
def test_a_column_that_is_not_certain_is_asked_for(names: list[str], chosen: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        recognised(names, chosen)


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    file.write_text(slow_node("when,box,latency,tokens/s,rack", "{s},{node},{step},1,r1"))
    chosen = [f"--column={one}" for one in ("time=when", "node=box", "step_seconds=latency", "cohort=rack")]

    found = judged(file, *chosen)

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    assert found["episodes"][0]["cohort"] == "r1"
    for wrong in ("speed=latency", "time"):
        assert run(file, "--column", wrong).exit_code == 2


def test_rows_that_are_sorted_by_node_are_judged_as_those_sorted_by_time(tmp_path: Path) -> None:
    lines = slow_node("time,node,rate", "{s},{node},{rate}").splitlines()
    (tmp_path / "time.csv").write_text("\n".join(lines))
    (tmp_path / "node.csv").write_text("\n".join([lines[0], *sorted(lines[1:], key=lambda line: line.split(",")[1])]))

    by_time, by_node = judged(tmp_path / "time.csv"), judged(tmp_path / "node.csv", "--plot", tmp_path / "plot.png")

    assert by_node["episodes"] == by_time["episodes"]
    assert by_node["summary"]["notes"] == ["the rows are not in the order of time, and were sorted"]
    assert by_time["summary"]["notes"] == []


def test_a_node_that_stopped_reporting_is_named_and_not_accused(tmp_path: Path) -> None:
    lines = slow_node("time,node,rate", "{epoch},{node},{ms}").splitlines()
    kept = [
        line
        for line in lines[1:]
        if not (",n3," in line and int(line.split(",")[0]) >= START + 1000)
        and not (",n4," in line and START + 500 <= int(line.split(",")[0]) < START + 550)
        and not (",n5," in line and START + 500 <= int(line.split(",")[0]) < START + 530)
    ]
    (tmp_path / "history.csv").write_text("\n".join([lines[0], *kept]))

    found, text = judged(tmp_path / "history.csv"), " ".join(run(tmp_path / "history.csv").stdout.split())

    assert {episode["node"] for episode in found["episodes"]} <= {"n2"}
    (gone,) = found["summary"]["silent"]["at_end"]
    assert gone == {
        "cluster": "", "node": "n3", "last_report": START + 990, "since": START + 1000, "until": None,
    }  # fmt: skip
    assert found["summary"]["silent"]["ended"] == {
        "count": 1,
        "first": [
            {"cluster": "", "node": "n4", "last_report": START + 490, "since": START + 500, "until": START + 550}
        ],
    }
    assert "1 node was silent at the end, dead or taken away: n3 since 2026-01-01 00:16:40" in text
    assert "1 time, a node was silent for a while and came back, of which nobody is accused: n4 from" in text


@pytest.mark.parametrize(("word", "used"), [("RUNNING", True), ("Active", True), ("rack 3", False)])
def test_a_column_of_other_states_is_left_out(tmp_path: Path, word: str, used: bool) -> None:
    (tmp_path / "history.csv").write_text(slow_node("time,node,rate,state", "{s},{node},{rate:.2f}," + word))

    found = judged(tmp_path / "history.csv")

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    assert ("state" in found["summary"]["columns"]["ignored"]) != used


@pytest.mark.parametrize("line", ["{s}, {node}, {rate}, A", "{s} | {node}  |  {rate} | A ", " {s},{node} ,{rate},A"])
def test_blanks_around_names_are_no_part_of_them(tmp_path: Path, line: str) -> None:
    delimiter = "|" if "|" in line else ","
    header = "time, node, rate, job".replace(",", f" {delimiter}")
    (tmp_path / "padded.csv").write_text(slow_node(header, line))
    (tmp_path / "plain.csv").write_text(slow_node("time,node,rate,job", "{s},{node},{rate},A"))
    halves = slow_node(header, line).splitlines()
    plain = [text.replace(" ", "").replace("|", ",") for text in halves]
    (tmp_path / "first.csv").write_text("\n".join(halves[:400]))
    (tmp_path / "second.csv").write_text("\n".join([plain[0], *plain[400:]]))

    whole = judged(tmp_path / "plain.csv")

    assert [episode["node"] for episode in whole["episodes"]] == ["n2"]
    for files in (["padded.csv"], ["first.csv", "second.csv"]):
        found = judged(*(tmp_path / file for file in files))
        assert found["episodes"] == whole["episodes"]
        assert found["summary"]["nodes"] == 6


def test_a_node_of_blanks_has_no_name(tmp_path: Path) -> None:
    text = slow_node("time,node,rate", "{s},{node},{rate}")
    (tmp_path / "history.csv").write_text(text + "1200,  ,100\n")

    assert "column node: a node needs a name" in judged(tmp_path / "history.csv")["summary"]["problems"]["first"][0]


def test_a_node_without_any_value_is_named(tmp_path: Path) -> None:
    lines = slow_node("time,node,rate", "{s},{node},{rate}").splitlines()
    (tmp_path / "history.csv").write_text(
        "\n".join(f"{line.rsplit(',', 1)[0]},NaN" if ",n3," in line else line for line in lines)
    )

    found, text = judged(tmp_path / "history.csv"), run(tmp_path / "history.csv").stdout

    assert found["summary"]["silent"]["always"] == [{"cluster": "", "node": "n3"}]
    assert found["summary"]["silent"]["at_end"] == []
    assert "1 node never had a value: n3" in text


def test_fleets_settings_choose_what_forms_cohorts(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text(slow_node("time,node,rate,job,stage", "{s},{node},{rate},A,{node}"))
    (tmp_path / "fleet.yaml").write_text(json.dumps({"processors": {"ingero": {"cohort": {"by": ["job_id"]}}}}))

    found = judged(tmp_path / "history.csv", "--config", tmp_path / "fleet.yaml")

    assert found["summary"]["columns"]["ignored"] == ["stage"]
    assert found["summary"]["cohorts"] == 1
    assert [episode["node"] for episode in found["episodes"]] == ["n2"]


def test_a_recording_of_which_rows_are_missing_never_claims_to_be_equal(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    recorder, parameters = TickRecorder(file, 1 << 20), Parameters(tick_seconds=10.0, warmup=5)
    detector, random = Detector(parameters, MERGEABLE), np.random.default_rng(1)
    for tick in range(40):
        seen = Observation(
            names=[node_key("c", f"node-{number}") for number in range(6)], cohort=np.zeros(6, np.int64),
            cohorts=[("c", "training", "", "", "", "", "rate")],
            value=100 * np.exp(0.03 * random.normal(size=6)), state=np.full(6, ACTIVE, np.uint8),
        )  # fmt: skip
        outcome = detector.tick(10.0 * tick, seen)
        recorder.write(10.0 * tick, seen)
        recorder.note_state(outcome.digest, state_hash(detector.memory))
    recorder.close()
    whole = replay(RecordedHistory([str(file)], 10.0), "ingero", parameters).summary()
    content = file.read_text()
    file.write_text(content[: content.rindex("node-5") + 4])

    found, text = judged(file), " ".join(run(file).stdout.split())

    assert whole["recorded_states"]["compared"] == 40
    assert whole["columns"]["ignored"] == []
    assert found["summary"]["problems"]["count"] == 1
    assert (found["summary"]["digest"], found["summary"]["recorded_states"]) == ("", None)
    assert "so this is not what that Fleet has judged" in text
    assert "results are equal" not in text


@pytest.mark.parametrize(
    ("column", "measure"),
    [("train/step_time", "step_seconds"), ("perf/tokens_per_sec", "rate"), ("time/step (s)", "step_seconds"),
     ("throughput per GPU (TFLOP/s/GPU)", "rate"), ("timing/iteration_time_ms", "step_seconds"),
     ("train/samples/s", "rate"), ("HFU", "rate"), ("throughput_tok_s", "rate"), ("throughput_tokens_per_s", "rate"),
     ("tokens_s", "rate"), ("step_s", "step_seconds")],
)  # fmt: skip
def test_values_in_a_group_and_rates_of_a_gpu_are_known(column: str, measure: str) -> None:
    assert recognised(["time", "node", column], {}).roles[measure] == (column,)


@pytest.mark.parametrize(
    "column", ["eval/score", "train/loss", "learning_rate", "tokens/step", "throughput_min", "steps_s"]
)
def test_what_is_no_rate_is_asked_for(column: str) -> None:
    with pytest.raises(ValueError, match="exactly one of the columns"):
        recognised(["time", "node", column], {})


def test_values_of_two_groups_are_asked_for() -> None:
    with pytest.raises(ValueError, match="could all be the value"):
        recognised(["time", "node", "train/step_time", "eval/step_time"], {})


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (["@timestamp", "labels.host", "log.step_time"], {"node": "labels.host", "step_seconds": "log.step_time"}),
        (["meta.ts", "meta.host", "data.tokens/s", "step"], {"time": "meta.ts", "rate": "data.tokens/s"}),
        (["ts", "a.host.name", "tags.job_id", "b.step_time_ms"], {"node": "a.host.name", "job_id": "tags.job_id"}),
        (["ts", "host", "agent.host", "rate", "train.step_time"], {"node": "host", "rate": "rate"}),
    ],
)  # fmt: skip
def test_cells_of_an_object_within_are_known_by_their_own_names(names: list[str], roles: dict[str, str]) -> None:
    found = recognised(names, {}).roles

    assert {role: found[role] for role in roles} == {role: (name,) for role, name in roles.items()}


def test_objects_that_hold_the_same_are_told_apart_by_nobody() -> None:
    with pytest.raises(ValueError, match="there is no column 'node'"):
        recognised(["time", "agent.host", "source.host", "rate"], {})


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (["compute_time_ms"], "compute_time_ms"),
        (["forward_ms", "backward_ms", "total_ms"], "forward_ms"),
        (["backward_ms", "total_ms"], "total_ms"),
        (["fwd_time", "bwd_time"], "fwd_time"),
        (["duration_ms", "loss"], "duration_ms"),
        (["train_step_seconds", "loss"], "train_step_seconds"),
        (["tokens_total", "gpu_temp"], "tokens_total"),
        (["tokens_total", "tokens_per_sec"], "tokens_per_sec"),
        (["step_time", "compute_time", "tokens_per_sec"], "compute_time"),
        (["step time", "mfu", "tokens/s", "samples/s"], "tokens/s"),
        (["sm_clock", "power_w", "gpu_util"], "gpu_util"),
        (["sm_clock", "power_w", "gpu_temp"], "power_w"),
        (
            ["gpu_util", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"],
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        ),
        (["step_time_p99", "step_time_p50"], "step_time_p50"),
        (["p99_ms", "p50_ms"], "p50_ms"),
        (["utilization.gpu [%]", "power.draw [W]"], "utilization.gpu [%]"),
        (["gpu_util", "mem_util"], "gpu_util"),
        (["Durchsatz", "Last"], "Durchsatz"),
    ],
)
def test_of_several_values_the_one_that_says_most_about_work_is_judged(names: list[str], value: str) -> None:
    assert recognised(["Zeit", "Knoten", *names], {}).value == value


def test_the_share_of_cycles_in_which_a_chip_works_counts_times_its_clock(tmp_path: Path) -> None:
    file = tmp_path / "smi.csv"
    line = "{iso}, {node}, H100, {rate:.1f} %, 1980 MHz"
    lines = slow_node("timestamp, index, name, utilization.gpu [%], clocks.current.sm [MHz]", line).splitlines()
    slower = (row.replace("1980", "990") if ", n4," in row and at > 420 else row for at, row in enumerate(lines))
    file.write_text("\n".join(slower))

    found = judged(file)

    assert sorted((one["node"], round(one["severity"], 1)) for one in found["episodes"]) == [("n2", 0.4), ("n4", 0.5)]
    assert found["summary"]["columns"]["used"]["rate"] == ["utilization.gpu [%]", "clocks.current.sm [MHz]"]


@pytest.mark.parametrize(("name", "per_second"), [("epoch_ms", 1000.0), ("relative_s", 1.0)])
def test_names_of_times(name: str, per_second: float) -> None:
    found = recognised([name, "node", "rate"], {})

    assert (found.roles["time"], found.per_second) == ((name,), per_second)


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (["timeUnixNano", "name", "host.name", "asDouble"], {"metric": "name", "rate": "asDouble"}),
        (["timestamp", "run_uuid", "key", "value"], {"node": "run_uuid", "metric": "key", "rate": "value"}),
        (["_time", "_value", "_field", "host"], {"time": "_time", "rate": "_value", "metric": "_field"}),
        (["time", "agentId", "tput"], {"node": "agentId"}),
    ],
)
def test_points_of_metrics_are_known(names: list[str], roles: dict[str, str]) -> None:
    found = recognised(names, {}, metric="tokens_per_second" if "metric" in roles else None).roles

    assert {role: found[role] for role in roles} == {role: (name,) for role, name in roles.items()}


@pytest.mark.parametrize(
    ("used", "told"),
    [
        ({"job_id": ["job"]}, True),
        ({"job_id": ["slurm_job_id"], "metric": ["__name__"]}, True),
        ({"job_id": ["job"], "metric": ["__name__"]}, False),
        ({"gpu_model": ["model"]}, False),
    ],
)
def test_the_label_of_a_scrape_tells_no_jobs(used: dict[str, list[str]], told: bool) -> None:
    assert Reading(used=used).tells_jobs is told


@pytest.mark.parametrize("words", [("running", "checkpoint"), ("1", "0"), ("training", "idle")])
def test_a_column_of_other_states_is_not_used(tmp_path: Path, words: tuple[str, str]) -> None:
    file = tmp_path / "history.csv"
    lines = slow_node("time,node,rate,state", "{s},{node},{rate}").splitlines()
    file.write_text(
        "\n".join([lines[0], *(f"{line},{words[number % 50 == 0]}" for number, line in enumerate(lines[1:]))])
    )

    found = judged(file)

    assert [episode["node"] for episode in found["episodes"]] == ["n2"]
    assert found["summary"]["columns"]["ignored"] == ["state"]
    assert any(f"{words[0]!r}" in note for note in found["summary"]["notes"])
