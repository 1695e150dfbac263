"""Timelines through the command, as a person uses it."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ingero_fleet.cli import main

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from timelines import Table, grid, interleaved, layered, pipeline, ring, varying


def diagnose(folder: Path, table: Table, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    kept = Table({name: [column] for name, column in table.arrays().items() if name not in leave_out})
    file = folder / "timeline.csv"
    file.write_text(kept.csv())
    done = CliRunner().invoke(main, ["diagnose", str(file)])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("leave_out", [(), ("step",), ("step", "seq", "group")], ids=["whole", "no step", "bare"])
def test_the_late_rank_of_a_ring_is_named(tmp_path: Path, leave_out: tuple[str, ...]) -> None:
    found = diagnose(tmp_path, ring(rng(), 8, culprit=3), leave_out)

    assert (found["kind"], found["ranks"]) == ("node", [3])
    assert 1.01 < found["slowdown"] < 1.06
    assert found["seconds_lost_per_step"] == pytest.approx(0.03, abs=0.02)


def test_the_answer_does_not_depend_on_clocks(tmp_path: Path) -> None:
    table = ring(rng(), 8, culprit=3)
    columns = table.arrays()
    shift = rng(2).uniform(-10, 10, 8)[columns["rank"].astype(int)]
    moved = Table({**table.columns, "start": [columns["start"].astype(float) + shift]})
    one, other = diagnose(tmp_path, table), diagnose(tmp_path, moved)

    assert (one["kind"], one["ranks"]) == (other["kind"], other["ranks"])
    assert one["slowdown"] == pytest.approx(other["slowdown"], abs=1e-6)


@pytest.mark.parametrize("kind", ["compute", "collective"])
def test_either_half_of_the_evidence_is_enough(tmp_path: Path, kind: str) -> None:
    columns = ring(rng(), 8, culprit=3).arrays()
    half = Table({name: [column[columns["kind"] == kind]] for name, column in columns.items()})

    found = diagnose(tmp_path, half)

    assert (found["kind"], found["ranks"]) == ("node", [3])


def test_a_rank_that_becomes_slow_half_way_is_named(tmp_path: Path) -> None:
    well, ill = (ring(rng(), 8, steps=60, late=late, culprit=3).arrays() for late in (0.0, 0.15))
    first = well["step"].astype(int) < 30
    found = diagnose(tmp_path, Table({name: [well[name][first], ill[name][~first]] for name in well}))

    assert (found["kind"], found["ranks"]) == ("node", [3])


def test_nobody_is_named_where_nobody_is_late(tmp_path: Path) -> None:
    assert diagnose(tmp_path, ring(rng(), 16, late=0.0))["kind"] == "none"
    assert diagnose(tmp_path, pipeline(rng(), heavy=0.0))["kind"] == "none"


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_a_heavy_stage_is_no_nodes_fault(tmp_path: Path, replicas: int) -> None:
    found = diagnose(tmp_path, pipeline(rng(), replicas=replicas))

    assert (found["kind"], found["ranks"], found["evidence"]["stage"]) == ("stage_imbalance", [], 3)
    assert found["slowdown"] == pytest.approx(1.25, abs=0.05)


@pytest.mark.parametrize("leave_out", [(), ("data_parallel",), ("data_parallel", "stage")])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_long_sequences_are_no_nodes_fault(tmp_path: Path, share: float, leave_out: tuple[str, ...]) -> None:
    found = diagnose(tmp_path, pipeline(rng(), heavy=0.0, long_share=share), leave_out)

    assert (found["kind"], found["ranks"]) == ("sequence_imbalance", [])


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_slow_rank_inside_a_pipeline_is_named_and_its_replica_is_not(tmp_path: Path, replicas: int) -> None:
    found = diagnose(tmp_path, pipeline(rng(), replicas=replicas, heavy=0.0, culprit=5, late=0.15))

    assert (found["kind"], found["ranks"]) == ("node", [5])


def test_a_whole_replica_that_is_slow_in_all_steps_may_have_longer_sequences(tmp_path: Path) -> None:
    table = interleaved(rng(), replicas=8, steps=20)
    columns = table.arrays()
    slow = (columns["data_parallel"] == 2) & (columns["kind"] == "compute")
    columns["duration"] = columns["duration"].astype(float) * np.where(slow, 1.2, 1.0)
    same = np.where(columns["kind"] == "compute", "4096", "")
    table = Table({name: [column] for name, column in columns.items()})

    unsaid = diagnose(tmp_path, table)
    told = diagnose(tmp_path, Table({**table.columns, "work": [same]}))
    text = CliRunner().invoke(main, ["diagnose", "--table", "--quiet", str(tmp_path / "timeline.csv")]).stdout

    assert (unsaid["kind"], unsaid["ranks"]) == ("unknown", [])
    assert unsaid["evidence"]["possible"] == [2, 10, 18, 26]
    assert (told["kind"], sorted(told["ranks"])) == ("node", [2, 10, 18, 26])
    assert text.startswith("rank ")


def test_a_late_rank_is_the_verdict_and_uneven_stages_are_reported_beside_it(tmp_path: Path) -> None:
    found = diagnose(tmp_path, pipeline(rng(), culprit=13, late=0.5))

    assert (found["kind"], found["ranks"]) == ("node", [13])
    assert [other["kind"] for other in found["evidence"]["also"]] == ["stage_imbalance"]


def test_a_slow_replica_beside_a_long_stage_is_said_with_the_ranks_that_it_may_be(tmp_path: Path) -> None:
    columns = interleaved(rng(), replicas=8, steps=20).arrays()
    compute, stage = columns["kind"] == "compute", columns["stage"].astype(int)
    slow = np.where(compute & (columns["data_parallel"].astype(int) == 2), 1.1, 1.0)
    slow *= np.where(compute & (stage == stage.max()), 1.6, 1.0)
    columns["duration"] = columns["duration"].astype(float) * slow

    found = diagnose(tmp_path, Table({name: [column] for name, column in columns.items()}))
    text = CliRunner().invoke(main, ["diagnose", "--table", "--quiet", str(tmp_path / "timeline.csv")]).stdout

    assert found["kind"] == "stage_imbalance"
    (other,) = found["evidence"]["also"]
    assert (other["kind"], other["ranks"], other["possible"]) == ("unknown", [], [2, 10, 18, 26])
    assert "besides, the job is delayed, but whether by a rank" in text


@pytest.mark.parametrize("change", [{}, {"memory": 0.98}, {"skew": 0.5}, {"skew": 3.0}, {"quadratic": 0.3}])
def test_what_longer_sequences_explain_is_no_ranks_lateness(tmp_path: Path, change: dict[str, float]) -> None:
    healthy = diagnose(tmp_path, varying(rng(), **change))  # type: ignore[arg-type]
    late = diagnose(tmp_path, varying(rng(), culprit=3, late=0.08, **change))  # type: ignore[arg-type]

    assert (healthy["kind"], healthy["ranks"]) == ("sequence_imbalance", [])
    assert healthy["evidence"]["by"] == "work" and "also" not in healthy["evidence"]
    assert (late["kind"], late["ranks"]) == ("node", [3])
    assert [other["kind"] for other in late["evidence"]["also"]] == ["sequence_imbalance"]


def test_a_rank_whose_work_is_unknown_is_not_compared_with_scaled_times(tmp_path: Path) -> None:
    columns = varying(rng(), skew=0.5).arrays()
    work = np.where((columns["rank"] == 7) & (columns["kind"] == "compute"), np.nan, columns["work"].astype(float))

    without = diagnose(tmp_path, Table({name: [column] for name, column in columns.items()}), ("work",))
    partly = diagnose(tmp_path, Table({name: [column] for name, column in {**columns, "work": work}.items()}))

    assert {**partly, "read": {}} == {**without, "read": {}}


def test_uneven_work_beside_a_late_rank_is_said_to_people_too(tmp_path: Path) -> None:
    file = tmp_path / "timeline.csv"
    file.write_text(varying(rng(), culprit=3, late=0.08).csv())

    done = CliRunner().invoke(main, ["diagnose", "--table", str(file)])

    assert done.stdout.startswith("rank 3 delays the job")
    assert "besides, steps differ by their data" in done.stdout


@pytest.mark.parametrize(("tensor", "data"), [(2, 2), (4, 2), (2, 8), (4, 4), (8, 8)])
@pytest.mark.parametrize("late", [0.0, 0.05, 0.3])
def test_peers_that_pass_a_delay_on_to_their_other_group_are_not_named(
    tmp_path: Path, tensor: int, data: int, late: float
) -> None:
    found = diagnose(tmp_path, grid(rng(tensor), tensor, data, late=late, culprit=1))

    assert found["ranks"] == ([1] if late else [])
    if late:
        assert found["seconds_lost_per_step"] == pytest.approx(late, rel=0.35)


def test_names_of_ranks_come_back_as_they_were(tmp_path: Path) -> None:
    columns = ring(rng(), 8, culprit=3).arrays()
    names = np.array([f"worker-{rank}" for rank in range(8)])[columns["rank"].astype(int)]

    found = diagnose(tmp_path, Table({**{name: [column] for name, column in columns.items()}, "rank": [names]}))

    assert found["ranks"] == ["worker-3"]


HEADER = "rank,op,kind,start,duration,work\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("rank,op,kind,start\n0,f,compute,0\n", "no column 'duration'"),
        (HEADER + "1,f,idle,0,1,\n", "row 2, column kind: 'idle' is neither"),
        (HEADER + "1,f,compute,x,1,\n", "row 2, column start: 'x' is not a number"),
        (HEADER + "1,f,compute,0,-1,\n", "row 2, column duration"),
        (HEADER + "1,f,compute,0,nan,\n", "row 2, column duration"),
        (HEADER + "1,f,compute,0,1e308,\n", "row 2, column duration: 1e+308 s are too long"),
        (HEADER + ",f,compute,0,1,\n", "row 2, column rank"),
        (HEADER + "1,f,compute,0\n", "row 2: 4 values where 6 columns were expected"),
        (HEADER + "1,f,compute,0,1,-1\n", "row 2, column work: a finite number"),
        (HEADER + "1,f,compute,0,1,inf\n", "row 2, column work: a finite number"),
        (HEADER + "1,f,compute,0,1,many\n", "row 2, column work: 'many' is not a number"),
    ],
)
def test_a_file_of_which_nothing_can_be_used_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)

    done = CliRunner().invoke(main, ["diagnose", str(file)])

    assert done.exit_code == 2
    assert words in done.stderr
    assert "bad.csv" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_timeline_of_one_rank_or_few_steps_says_nothing(tmp_path: Path) -> None:
    assert diagnose(tmp_path, ring(rng(), 1, late=0.0))["kind"] == "unknown"
    assert diagnose(tmp_path, ring(rng(), 8, steps=3, culprit=3))["kind"] == "unknown"


UNSAID = [(), ("step",), ("stage", "data_parallel"), ("step", "stage", "data_parallel")]


@pytest.mark.parametrize("leave_out", UNSAID, ids=["whole", "no step", "no stages", "neither"])
@pytest.mark.parametrize(
    ("how", "kind", "ranks"),
    [
        pytest.param({}, "none", [], id="even"),
        pytest.param({"heavy": 0.4}, "stage_imbalance", [], id="heavy last stage"),
        pytest.param({"late": 0.1}, "node", [5], id="computes longer"),
        pytest.param({"stall": 0.02}, "node", [5], id="stands still on its host"),
    ],
)
def test_a_real_pipeline_is_judged_whatever_is_left_unsaid(
    tmp_path: Path, how: dict[str, Any], kind: str, ranks: list[int], leave_out: tuple[str, ...]
) -> None:
    found = diagnose(tmp_path, interleaved(rng(), culprit=5, **how), leave_out)

    assert (found["kind"], found["ranks"]) == (kind, ranks)
    if kind == "stage_imbalance":
        assert found["evidence"]["stage"] in (3, "that of rank 12")


BARE = ("stage", "data_parallel", "group", "seq")


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("operations", [("compute", "collective"), ("collective",)], ids=["compute", "waits alone"])
def test_a_heavy_stage_is_no_rank_where_nothing_tells_stages(
    tmp_path: Path, stages: int, replicas: int, operations: tuple[str, ...]
) -> None:
    table = interleaved(rng(), stages, replicas, heavy=0.5, norm=True)
    columns = table.arrays()
    kept = Table()
    kept.add(**{name: column[np.isin(columns["kind"], operations)] for name, column in columns.items()})

    found = diagnose(tmp_path, kept, BARE)

    assert found["ranks"] == []
    if found["kind"] == "unknown" and found["evidence"].get("by") == "may_be_stage":
        assert found["evidence"]["possible"] == list(range((stages - 1) * replicas, stages * replicas))


def test_waits_in_a_pipeline_accuse_nobody_where_nothing_tells_stages(tmp_path: Path) -> None:
    found = diagnose(tmp_path, interleaved(rng(), stages=2, replicas=2, parts=4), BARE)

    assert (found["kind"], found["ranks"], found["evidence"].get("possible")) == ("none", [], None)


def test_a_rank_that_is_less_than_a_stage_is_named_where_nothing_tells_stages(tmp_path: Path) -> None:
    found = diagnose(tmp_path, interleaved(rng(), culprit=5, late=0.2), BARE)

    assert (found["kind"], found["ranks"]) == ("node", [5])


@pytest.mark.parametrize(("everywhere", "kind", "ranks"), [(False, "node", [3]), (True, "none", [])])
def test_collecting_garbage_is_no_work_of_a_rank(
    tmp_path: Path, everywhere: bool, kind: str, ranks: list[int]
) -> None:  # fmt: skip
    """A rank collects garbage in every other step, or all do, in turn."""
    table, now, random = Table(), np.zeros(8), rng()
    for step in range(40):
        collects = step % 8 if everywhere else 3
        for op, seconds in (("forward", 0.1 + 0.001 * random.normal(size=8)), ("gc.collect", np.full(8, 0.03))):
            who = np.arange(8) if op == "forward" else np.array([collects] if step % 2 else [], np.int64)
            table.add(rank=who, op=op, kind="compute", start=now[who], duration=seconds[who], step=step)
            now[who] += seconds[who]
        end = now.max() + 0.01
        table.add(rank=np.arange(8), op="all_reduce", kind="collective", start=now, duration=end - now, step=step)
        now = np.full(8, end)

    found = diagnose(tmp_path, table)

    assert (found["kind"], found["ranks"]) == (kind, ranks)


@pytest.mark.parametrize("unsaid", [("step",), ("step", "seq", "group")], ids=["no step", "bare"])
@pytest.mark.parametrize(("tensor", "data"), [(1, 8), (4, 4)])
def test_layers_and_buckets_are_no_steps(tmp_path: Path, tensor: int, data: int, unsaid: tuple[str, ...]) -> None:
    healthy = layered(rng(), tensor, data, layers=6)
    slow = layered(rng(), tensor, data, layers=6, culprit=5, slower=0.1)
    told, counted = diagnose(tmp_path, slow), diagnose(tmp_path, slow, unsaid)

    assert diagnose(tmp_path, healthy, unsaid)["kind"] == "none"
    assert counted["ranks"] == [5]
    assert counted["evidence"]["steps"] == told["evidence"]["steps"]
    assert counted["slowdown"] == pytest.approx(told["slowdown"], rel=0.01)


def sharded(steps: int, late: int | None, layers: int = 4) -> Table:
    """Eight ranks that gather each layer before they compute it, and scatter its gradients after; `late` does nothing
    for 0.3 s at the begin of every step."""
    random, table, seq = rng(), Table(), 0
    ranks, now = np.arange(8), np.zeros(8)
    for step in range(steps):
        now += np.where(ranks == late, 0.3, 0.0)
        layer_by_layer = [("all-gather", "forward")] * layers + [("all-gather", "backward")] * layers
        for gather, computes in layer_by_layer:
            for op, kind in ((gather, "collective"), (computes, "compute"), ("reduce-scatter", "collective")):
                if op == "reduce-scatter" and computes == "forward":
                    continue
                end = now + 0.1 * random.normal(1, 0.01, 8) if kind == "compute" else np.full(8, now.max() + 0.01)
                group = "all" if kind == "collective" else ""
                table.add(rank=ranks, op="work" if kind == "compute" else op, kind=kind, start=now,
                          duration=end - now, step=step, group=group, seq=seq if group else "")  # fmt: skip
                seq, now = seq + (kind == "collective"), end
    return table


@pytest.mark.parametrize("steps", [3, 5])
def test_layers_of_sharded_data_are_no_steps_of_a_few(tmp_path: Path, steps: int) -> None:
    late, even = (diagnose(tmp_path, sharded(steps, rank), ("step",)) for rank in (6, None))

    assert (late["kind"], late["ranks"], late["evidence"]["steps"]) == ("node", [6], steps)
    assert (even["kind"], even["ranks"], even["evidence"]["steps"]) == ("unknown", [], steps)


def test_a_checkpoint_in_a_rhythm_makes_no_longer_steps(tmp_path: Path) -> None:
    columns = sharded(14, None, layers=1).arrays()
    kept, saves = (
        Table(),
        np.flatnonzero((columns["op"] == "reduce-scatter") & (columns["step"].astype(int) % 4 == 0)),
    )
    kept.add(**columns)
    start = columns["start"][saves].astype(float) + 0.02
    kept.add(rank=columns["rank"][saves], op="barrier", kind="collective", start=start, duration=0.001,
             step=columns["step"][saves], group="all", seq=1000 + saves)  # fmt: skip

    assert diagnose(tmp_path, kept, ("step",))["evidence"]["steps"] == 14


@pytest.mark.parametrize("steps", [4, 7, 30])
def test_layers_are_no_steps_of_a_recording_of_few_steps(tmp_path: Path, steps: int) -> None:
    columns = layered(rng(), tensor=2, data=4, layers=6, steps=steps, culprit=5, slower=0.5).arrays()
    groups = columns["group"].astype(str)
    last = np.array([not name.startswith("data") or int(seq) % 6 == 5 for name, seq in
                     zip(groups, columns["seq"].astype(str), strict=True)])  # fmt: skip
    kept = Table()
    kept.add(**{name: column[last] for name, column in columns.items()})

    found = diagnose(tmp_path, kept, ("step",))

    assert found["evidence"]["steps"] in (steps, steps + 1), "the optimizer follows the last exchange"
    assert (found["kind"], found["ranks"]) == ("node", [5])


@pytest.mark.parametrize(("replicas", "heavy"), [(1, 0.4), (4, 0.4), (1, 0.0), (4, 0.0)])
def test_stages_are_found_where_all_ranks_also_meet(tmp_path: Path, replicas: int, heavy: float) -> None:
    found = diagnose(
        tmp_path, interleaved(rng(), replicas=replicas, heavy=heavy, norm=True), ("stage", "data_parallel")
    )

    assert (found["kind"], found["ranks"]) == ("stage_imbalance" if heavy else "none", [])


def ring_attention(
    chance: np.random.Generator, culprit: int, replicas: int, around: int = 4, steps: int = 20
) -> Table:
    """Ranks that hand each other parts of a sequence in rings, and then meet; one computes a fifth longer."""
    ranks = np.arange(around * replicas)
    clock = np.zeros(len(ranks))
    following = ranks // around * around + (ranks + 1) % around
    slow, table = np.where(ranks == culprit, 1.2, 1.0), Table()
    for step in range(steps):
        for turn in range(around):
            spent = 0.01 * slow * chance.normal(1, 0.01, len(ranks))
            table.add(
                rank=ranks, op="attention", kind="compute", start=clock, duration=spent, step=step, group="", seq=""
            )
            clock = clock + spent
            end = np.maximum(clock, clock[following]) + 0.001
            arrived = np.maximum.reduce([clock, end, end[np.argsort(following)]])
            seq = step * around + turn
            for who, begun, until in ((ranks, clock, end), (following, clock[following], end)):
                table.add(rank=who, op="send_recv", kind="collective", start=begun, duration=until - begun, step=step,
                          group=np.char.add("from", ranks.astype(str)), seq=seq)  # fmt: skip
            clock = arrived
        end = np.full(len(ranks), clock.max() + 0.005)
        table.add(rank=ranks, op="all_reduce", kind="collective", start=clock, duration=end - clock, step=step,
                  group="all", seq=step)  # fmt: skip
        clock = end
    return table


def test_a_host_whose_ranks_are_slow_is_said_where_hosts_are_recorded(tmp_path: Path) -> None:
    half = layered(rng(), 1, 8, culprit=(4, 5, 6, 7), slower=0.2, steps=20)
    one = layered(rng(), 1, 8, culprit=4, slower=0.2, steps=20)
    for table, hosts, nodes in ((half, ["n1"], None), (one, None, {"4": "n1"})):
        rank = table.arrays()["rank"].astype(int)
        evidence = diagnose(tmp_path, Table({**table.columns, "host": [np.char.add("n", (rank // 4).astype(str))]}))[
            "evidence"
        ]

        assert (evidence.get("hosts"), evidence.get("nodes")) == (hosts, nodes)


@pytest.mark.parametrize(("around", "replicas"), [(4, 1), (4, 2), (2, 4), (2, 8)])
def test_ranks_that_send_in_a_ring_are_no_pipeline(tmp_path: Path, around: int, replicas: int) -> None:
    slow = diagnose(tmp_path, ring_attention(rng(), 2, replicas, around))
    healthy = diagnose(tmp_path, ring_attention(rng(), -1, replicas, around))

    assert (slow["kind"], slow["ranks"], healthy["kind"]) == ("node", [2], "none")


def test_a_rank_that_became_slow_is_named_in_few_steps(tmp_path: Path) -> None:
    found = diagnose(tmp_path, interleaved(rng(), culprit=5, late=0.3, since=15))
    alone = diagnose(tmp_path, interleaved(rng(), replicas=1, culprit=2, late=0.5, since=15))

    assert (found["kind"], found["ranks"]) == ("node", [5])
    assert (alone["kind"], alone["ranks"]) == ("node", [2])


@pytest.mark.parametrize("seed", range(30))
def test_any_rows_get_a_verdict(tmp_path: Path, seed: int) -> None:
    """Ranks without collectives, steps without ranks, durations of nothing: numpy's warnings are errors here."""
    chance = rng(seed)
    count = int(chance.integers(1, 400))
    names = np.array(["forward", "backward", "all-reduce", "send", "recv", "barrier"])
    op = chance.integers(0, 6, count)
    table = Table()
    table.add(
        rank=chance.integers(0, chance.integers(1, 12), count), op=names[op], start=chance.uniform(0, 100, count),
        kind=np.where(op > 1, "collective", "compute"), duration=chance.choice([0, 1e-9, 0.5, 1e6], count),
        step=chance.integers(0, 30, count), group=chance.choice(["", "a", "b"], count),
        seq=chance.integers(0, 50, count), stage=chance.integers(0, 3, count),
        data_parallel=chance.integers(0, 3, count),
    )  # fmt: skip
    unsaid = tuple(name for name in ("step", "group", "seq", "stage", "data_parallel") if chance.random() < 0.3)

    assert diagnose(tmp_path, table, unsaid)["kind"] in (
        "none", "node", "stage_imbalance", "sequence_imbalance", "unknown"
    )  # fmt: skip


def test_a_timeline_that_is_too_short_is_not_called_healthy(tmp_path: Path) -> None:
    file = tmp_path / "short.csv"
    rows = [f"{rank},gemm,compute,{step},{0.5 if rank else 0.9},{step}" for step in range(2) for rank in range(4)]
    file.write_text("\n".join(["rank,op,kind,start,duration,step", *rows]))

    done = CliRunner().invoke(main, ["diagnose", str(file), "--table", "--quiet"])

    assert done.exit_code == 0
    assert done.stdout.startswith("nobody can be judged: complete steps: 2; ")
    assert "possible: rank 0 is the last" in done.stdout
    found = json.loads(CliRunner().invoke(main, ["diagnose", str(file), "--json"]).stdout)
    assert (found["kind"], found["slowdown"], found["seconds_lost_per_step"]) == ("unknown", None, None)
