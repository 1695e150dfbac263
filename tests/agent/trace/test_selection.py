"""Which processes are traced: an operator's patterns, and that the others pay nothing and are not counted."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ingero_agent.cli import main
from ingero_agent.trace.libraries import CUDA, CUDART, FileIdentity, MappedLibrary
from ingero_agent.trace.selection import Selection, split_by_selection
from ingero_agent.trace.targets import AttachTarget, plan_targets
from ingero_testing.gpu_job import RUNTIME, attached, compile_c, go, job, links_of, tracing
from ingero_testing.processes import wait_until
from ingero_testing.trace_database import query

CALLS = """
#include <stddef.h>
#include <stdio.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
int main(void) {
  dim3 one = {1, 1, 1};
  getchar();
  for (int i = 0; i < 1000; i++) cudaLaunchKernel(0, one, one, 0, 0, 0);
  getchar();
}
"""
COMMANDS = {1: "python train.py --fast", 2: "python serve.py", 3: "nvtop"}


@pytest.mark.parametrize(
    ("only", "exclude", "wanted"),
    [
        (None, None, {1, 2, 3}),
        ("python", None, {1, 2}),
        (None, r"^nvtop$", {1, 2}),
        ("python", "serve", {1}),
        ("ruby", None, set()),
    ],
)
def test_patterns_choose_and_excluding_wins(only: str | None, exclude: str | None, wanted: set[int]) -> None:
    selection = Selection(only and re.compile(only), exclude and re.compile(exclude))  # type: ignore[arg-type]

    taken, left = split_by_selection(dict.fromkeys(COMMANDS, "x"), selection, COMMANDS.__getitem__)

    assert (set(taken), left) == (wanted, set(COMMANDS) - wanted)


def test_with_a_choice_every_process_has_probes_of_its_own() -> None:
    file = FileIdentity(1, 2, 3)
    found = {pid: [MappedLibrary(CUDART, pid, file, Path(f"/{pid}"))] for pid in (5, 6)}
    found[7] = [MappedLibrary(CUDA, 7, file, Path("/7"))]

    assert set(plan_targets(found, lambda _: None, per_process=True)) == {
        AttachTarget(CUDART, file, 5), AttachTarget(CUDART, file, 6), AttachTarget(CUDA, file, 7)
    }  # fmt: skip
    assert set(plan_targets(found, lambda _: None)) == {AttachTarget(CUDART, file), AttachTarget(CUDA, file, 7)}


def test_a_pattern_that_is_none_is_named() -> None:
    done = CliRunner().invoke(main, ["trace", "--only-command", "(("])

    assert done.exit_code == 2
    assert "((: " in done.stderr


@pytest.mark.ebpf
def test_only_the_chosen_process_is_counted_and_the_other_has_no_probe(tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    chosen, other = (compile_c(tmp_path, name, CALLS, str(library)) for name in ("chosen", "other"))
    with job(other) as left, tracing(tmp_path, "--only-command", str(chosen)) as agent:
        before = len(links_of(agent.process.pid))
        with job(chosen) as taken:
            wait_until(lambda: attached(agent, library), "the library")
            assert len(links_of(agent.process.pid)) > before
            for one in (left, taken):
                go(one)

            def counts() -> dict[int, int]:
                text = "SELECT pid, SUM(count) FROM event_aggregates WHERE source = 1 GROUP BY pid"
                return dict(query(tmp_path / "trace.db", text))

            wait_until(lambda: counts().get(taken.pid) == 1000, "the calls")
            assert left.pid not in counts()
