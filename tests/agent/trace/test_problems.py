"""Why a node is not traced, where an operator reads it: machine-readable reasons with their cures."""

import json
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ingero_agent.cli import main
from ingero_agent.trace.capabilities import Facts, evaluate
from ingero_agent.trace.gpu_stats import GpuSample
from ingero_agent.trace.problems import TerminationLog, find_problems
from ingero_contract import routes
from ingero_contract.node_problems import TraceProblem, parse_problems
from ingero_testing.gpu_job import listening_port
from ingero_testing.processes import BIN, process, wait_until

GOOD = Facts(release="6.8.0", effective=(1 << 41) - 1, btf=True, bcc=True)
GPU = GpuSample(index=0, uuid="GPU-1", used=1, free=1, total=2, processes={41: 1, 42: 1})


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"btf": False}, TraceProblem.NO_BTF, "CONFIG_DEBUG_INFO_BTF"),
        ({"gpu_error": "NVML: Driver Not Loaded"}, TraceProblem.NO_NVML, "libnvidia-ml.so.1"),
        ({"effective": 0}, TraceProblem.PRIVILEGES_REFUSED, "capabilities.add: [BPF, PERFMON"),
        ({"mapped_files_error": "Operation not permitted"}, TraceProblem.PRIVILEGES_REFUSED, "hostUsers"),
        ({"load_error": "Operation not permitted: tracing needs x"}, TraceProblem.PRIVILEGES_REFUSED, "seccomp"),
        ({"lockdown": "none [confidentiality]"}, TraceProblem.PRIVILEGES_REFUSED, "boot without"),
    ],
)
def test_what_is_missing_has_a_reason_and_a_cure(change: dict[str, object], reason: TraceProblem, words: str) -> None:
    (found,) = find_problems(evaluate(replace(GOOD, **change))).items()  # type: ignore[arg-type]

    assert found[0] is reason
    assert words in found[1] and "tracing needs" not in found[1]


def test_a_good_machine_has_no_problem_and_an_idle_one_neither() -> None:
    assert find_problems(evaluate(GOOD)) == find_problems(evaluate(GOOD), [replace(GPU, processes={})]) == {}


def test_processes_on_the_gpus_of_which_no_library_is_seen_are_a_problem() -> None:
    (found,) = find_problems(evaluate(GOOD), [GPU], ()).items()

    assert found[0] is TraceProblem.NO_CUDA_LIBRARIES
    assert found[1].startswith("2 processes use the GPUs (such as 41)") and "hostPID" in found[1]
    assert find_problems(evaluate(GOOD), [GPU], [42]) == {}


def test_the_termination_log_has_the_problems_of_now_and_is_never_created(tmp_path: Path) -> None:
    file, absent = tmp_path / "termination-log", tmp_path / "absent"
    file.touch()
    TerminationLog(absent).write({TraceProblem.NO_BTF: "x"})
    log = TerminationLog(file)
    log.write({TraceProblem.NO_BTF: "x", TraceProblem.NO_NVML: "y"})
    before = file.read_text()
    log.write({})

    assert not absent.exists()
    assert (parse_problems(before), file.read_text()) == (
        {TraceProblem.NO_BTF: "x", TraceProblem.NO_NVML: "y"}, ""
    )  # fmt: skip


def test_a_check_that_fails_does_not_keep_the_tracer_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> Facts:
        raise RuntimeError("unexpected")

    monkeypatch.setattr("ingero_agent.trace.check.collect_facts", fail)
    monkeypatch.setattr("ingero_agent.trace.check.machine_facts", lambda: replace(GOOD, btf=False))
    file = tmp_path / "termination-log"
    done = CliRunner().invoke(main, ["check", "--termination-log", str(file)])

    assert (done.exit_code, set(parse_problems(file.read_text()))) == (0, {TraceProblem.NO_BTF})
    assert "not tried: RuntimeError: unexpected" in done.output
    assert isinstance(CliRunner().invoke(main, ["check"]).exception, RuntimeError)


@pytest.mark.ebpf
def test_a_tracer_without_rights_says_so_in_its_termination_log_and_on_its_page(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    command = [
        "setpriv", "--bounding-set=-all", "--inh-caps=-all", BIN / "ingero-agent", "trace", "--db",
        tmp_path / "trace.db", "--prometheus", "127.0.0.1:0", "--gpu-interval", "0s", "--termination-log", file,
    ]  # fmt: skip
    with process(tmp_path / "log", *map(str, command)) as agent:
        wait_until(lambda: TraceProblem.PRIVILEGES_REFUSED in parse_problems(file.read_text()), "the reason")
        url = f"http://127.0.0.1:{listening_port(agent)}{routes.TRACER_HEALTH}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            health = json.load(answer)

    assert health["ready"] is False
    assert "CAP_BPF" in health["problems"]["PrivilegesRefused"]
