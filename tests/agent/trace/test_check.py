"""What `ingero-agent check` says about a machine, and what it says to do."""

import json
import subprocess
from dataclasses import replace

import pytest

from ingero_agent.trace.capabilities import (
    Capability,
    Facts,
    Support,
    can_trace,
    evaluate,
    missing_privileges,
)
from ingero_testing.processes import BIN

COSTS = {"entry": 600.0, "pair": 1200.0, "collective_cold": 4000.0, "wait_cold": 2000.0}
GOOD = Facts(
    release="6.8.0-45-generic", effective=(1 << 41) - 1, btf=True, lockdown="[none] integrity confidentiality",
    bcc=True, perf_uprobes=True, costs=COSTS, libraries=(("cudart", "python"),), gpus=8,
    pyarrow=True, database="/var/lib/ingero/ingero.db",
)  # fmt: skip


def lines(facts: Facts) -> dict[str, Capability]:
    return {one.name: one for one in evaluate(facts)}


def test_a_good_machine_is_good_throughout() -> None:
    found = evaluate(GOOD)

    assert can_trace(found)
    assert {one.state for one in found} == {Support.OK}


@pytest.mark.parametrize(
    ("change", "name", "state", "fix"),
    [
        pytest.param({"release": "4.18.0"}, "kernel", Support.MISSING, "5.15", id="old kernel"),
        pytest.param({"machine": "riscv64"}, "kernel", Support.MISSING, "x86_64", id="foreign machine"),
        pytest.param({"effective": 0}, "privileges", Support.MISSING, "BPF, PERFMON, SYS_PTRACE", id="no root"),
        pytest.param(
            {"bcc": False, "not_prebuilt": "no libbpf"}, "loader", Support.MISSING, "libbpf1", id="no loader"
        ),
        pytest.param({"load_error": "refused"}, "programs", Support.MISSING, "above", id="no programs"),
        pytest.param(
            {"lockdown": "none integrity [confidentiality]"},
            "lockdown",
            Support.MISSING,
            "lockdown",
            id="lockdown",
        ),
        pytest.param({"database_error": "/x cannot be written"}, "database", Support.MISSING, "--db", id="no folder"),
        pytest.param(
            {"link_error": "Invalid argument", "perf_uprobes": False},
            "links",
            Support.MISSING,
            "6.6",
            id="no uprobes",
        ),
    ],
)
def test_what_is_missing_stops_tracing_and_has_a_cure(
    change: dict[str, object], name: str, state: Support, fix: str
) -> None:
    found = lines(replace(GOOD, **change))  # type: ignore[arg-type]

    assert (found[name].state, can_trace(list(found.values()))) == (state, False)
    assert fix in found[name].fix


@pytest.mark.parametrize(
    ("change", "name", "state"),
    [
        ({"release": "5.15.0"}, "kernel", Support.DEGRADED),
        ({"btf": False}, "btf", Support.DEGRADED),
        ({"link_error": "Invalid argument"}, "links", Support.DEGRADED),
        ({"effective": 1 << 21}, "privileges", Support.DEGRADED),
        ({"not_prebuilt": "no libbpf"}, "loader", Support.DEGRADED),
        ({"origin": "compiled"}, "programs", Support.DEGRADED),
        ({"no_returns": "it dies"}, "returns", Support.DEGRADED),
        ({"no_scheduler": "no types"}, "scheduler", Support.DEGRADED),
        ({"costs": None}, "cost", Support.DEGRADED),
        ({"costs": {**COSTS, "pair": 9000.0}}, "cost", Support.DEGRADED),
        ({"libraries": ()}, "libraries", Support.ABSENT),
        ({"gpu_error": "no driver"}, "gpu", Support.ABSENT),
        ({"pyarrow": False}, "parquet", Support.ABSENT),
    ],
)
def test_what_works_with_less_does_not_stop_tracing(change: dict[str, object], name: str, state: Support) -> None:
    found = lines(replace(GOOD, **change))  # type: ignore[arg-type]

    assert (found[name].state, can_trace(list(found.values()))) == (state, True)
    assert found[name].fix or name == "cost"


def test_the_old_all_powerful_capability_stands_for_the_new_ones() -> None:
    assert missing_privileges(1 << 21) == ["CAP_SYS_PTRACE"]


@pytest.mark.parametrize(("held", "advised"), [(True, False), (False, True)])
def test_a_capability_is_advised_for_unreadable_processes_only_where_it_is_not_held(
    held: bool, advised: bool
) -> None:
    effective = GOOD.effective & ~(0 if held else 1 << 19)

    found = lines(replace(GOOD, libraries=(), unreadable_processes=3, effective=effective))["libraries"]

    assert "3 processes cannot be read" in found.reason
    assert ("SYS_PTRACE" in found.fix) == advised


@pytest.mark.ebpf
def test_a_capable_machine_is_tried_for_real_and_its_cost_measured() -> None:
    done = subprocess.run([BIN / "ingero-agent", "check", "--json"], capture_output=True, text=True, timeout=120)
    found = {one["name"]: one for one in json.loads(done.stdout)["capabilities"]}

    assert (done.returncode, found["links"]["state"]) == (0, "ok"), done.stdout
    assert " ns a counted call" in found["cost"]["reason"]
    assert " ns a collective and its wait" in found["cost"]["reason"]
    assert found["returns"]["state"] in ("ok", "degraded")


@pytest.mark.ebpf
def test_without_privileges_the_answer_names_them_and_says_no() -> None:
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", BIN / "ingero-agent", "check", "--json"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    answer = json.loads(done.stdout)

    assert (done.returncode, answer["can_trace"]) == (1, False)
    assert "CAP_BPF" in next(one["reason"] for one in answer["capabilities"] if one["name"] == "privileges")
