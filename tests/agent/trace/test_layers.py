"""One layer of CUDA for each process: runtime, runtime linked in, or driver; and the way of older kernels."""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from ingero_agent.trace.discovery import LibraryFinder, parse_size
from ingero_agent.trace.libraries import FileIdentity, MappedLibrary
from ingero_agent.trace.probes.table import IMPORTANT, library_functions
from ingero_agent.trace.targets import AttachTarget, plan_targets, probe_places
from ingero_testing.gpu_job import attached, compile_c, go, job, link_lives, links_of, said, tracing
from ingero_testing.processes import wait_until
from ingero_testing.trace_database import query

A, B, C = (FileIdentity(inode, 1, 1) for inode in (1, 2, 3))


def found(kind: str, pid: int, identity: FileIdentity) -> MappedLibrary:
    return MappedLibrary(kind, pid, identity, Path(f"/proc/{pid}/map_files/{kind}"))


def targets(libraries: dict[int, list[MappedLibrary]], static: tuple[int, ...] = ()) -> set[AttachTarget]:
    return set(plan_targets(libraries, lambda pid: (C, Path(f"/proc/{pid}/exe")) if pid in static else None))


def test_a_library_of_many_processes_is_one_target() -> None:
    libraries = {pid: [found("cudart", pid, A), found("nccl", pid, B)] for pid in (1, 2, 3)}

    assert targets(libraries) == {AttachTarget("cudart", A), AttachTarget("nccl", B)}


def test_the_driver_is_counted_only_for_a_process_without_a_runtime() -> None:
    libraries = {1: [found("cudart", 1, A), found("cuda", 1, B)], 2: [found("cuda", 2, B)], 3: [found("cuda", 3, B)]}

    assert targets(libraries, static=(3,)) == {
        AttachTarget("cudart", A),
        AttachTarget("cuda", B, 2),
        AttachTarget("cudart", C, 0, True),
    }


def test_a_process_that_loads_its_runtime_later_leaves_the_driver() -> None:
    assert targets({1: [found("cuda", 1, B)]}) == {AttachTarget("cuda", B, 1)}
    assert targets({1: [found("cuda", 1, B), found("cudart", 1, A)]}) == {AttachTarget("cudart", A)}


def test_two_names_of_one_function_are_probed_once() -> None:
    functions = library_functions("cudart")
    offsets = {
        "cudaLaunchKernel": [64],
        "cudaLaunchKernel_ptsz": [64, 128],
        "cudaMalloc": [256],
        "cudaSetDevice": [512],
    }
    chosen = probe_places(functions, offsets, 3)

    assert list(chosen["launch"]["launch"]) == [64, 128]
    assert list(chosen["memory"]["call"]) == [256]
    assert list(chosen["core"]["device"]) == [512]
    assert chosen["launch"]["launch"][64] >> 16 & 0xFF == 3


def test_the_way_of_older_kernels_takes_few_functions() -> None:
    functions = library_functions("cudart")
    chosen = probe_places(functions, {name: [64 * place] for place, name in enumerate(functions, 1)}, 0, few=True)
    probed = [offset for kinds in chosen.values() for cookies in kinds.values() for offset in cookies]

    assert 0 < len(probed) <= 20
    assert len(IMPORTANT) <= 20


def fake_process(proc: Path, pid: int, size: int, maps: str = "") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"{pid} (a) b) S " + " ".join(["0"] * 18 + ["77", str(size)]) + "\n")
    (folder / "maps").write_text(maps)


def test_start_and_size_of_a_process_with_an_odd_name() -> None:
    assert parse_size("1 (a) b) S " + " ".join(["0"] * 18 + ["77", "4096"])) == (77, 4096)


def test_a_process_is_read_again_only_when_it_grew(tmp_path: Path) -> None:
    line = "7f00-7f01 r-xp 00000000 08:01 12 /opt/libnccl.so.2\n"
    fake_process(tmp_path, 10, 4096)
    finder = LibraryFinder(tmp_path, lambda: 0.0)
    before = finder.find()
    fake_process(tmp_path, 10, 4096, line)
    (tmp_path / "10/map_files").mkdir()
    (tmp_path / "10/map_files/7f00-7f01").write_text("library")
    unchanged = finder.find()
    fake_process(tmp_path, 10, 8192, line)
    grown = finder.find()

    assert (before, unchanged) == ({}, {})
    assert [(one.kind, one.pid, one.name) for one in grown[10]] == [("nccl", 10, "/opt/libnccl.so.2")]


DRIVER = r"""
__attribute__((noinline)) int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e,
  unsigned g, unsigned s, void *t, void **p, void **x) { __asm__("nop"); return 0; }
"""
RUNTIME_OVER_DRIVER = r"""
#include <stddef.h>
typedef struct { unsigned x, y, z; } dim3;
typedef unsigned u;
int cuLaunchKernel(void *, u, u, u, u, u, u, u, void *, void **, void **);
__attribute__((noinline)) int cudaLaunchKernel(void *f, dim3 g, dim3 b, void **a, size_t s, void *t)
{ return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, t, a, 0) | (s == 77); }
"""
CALLER = r"""
#include <stddef.h>
#include <stdio.h>
typedef struct { unsigned x, y, z; } dim3;
#ifdef DRIVER_ONLY
typedef unsigned u;
int cuLaunchKernel(void *, u, u, u, u, u, u, u, void *, void **, void **);
#define CALL cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
#else
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
#define CALL cudaLaunchKernel(0, one, one, 0, 0, 0)
#endif
int main(void) {
  dim3 one = {1, 1, 1};
  getchar();
  for (int i = 0; i < 1000; i++) CALL;
  printf("done\n");
  fflush(stdout);
  getchar();
}
"""


def launches(database: Path, pid: int) -> list[tuple[int, int, int]]:
    return query(
        database,
        "SELECT source, op, SUM(count) FROM event_aggregates WHERE pid = ? AND source != 3 GROUP BY 1, 2",
        pid,
    )


def both_libraries(folder: Path) -> tuple[str, str]:
    driver = compile_c(folder, "libcuda.so.1", DRIVER, "-shared", "-fPIC")
    runtime = compile_c(folder, "libcudart.so.13", RUNTIME_OVER_DRIVER, "-shared", "-fPIC", str(driver))
    return str(driver), str(runtime)


def over_the_runtime(folder: Path) -> Path:
    driver, runtime = both_libraries(folder)
    return compile_c(folder, "caller", CALLER, runtime, driver)


def with_the_runtime_inside(folder: Path) -> Path:
    driver, _ = both_libraries(folder)
    (folder / "inside.c").write_text(RUNTIME_OVER_DRIVER)
    return compile_c(folder, "caller", CALLER, str(folder / "inside.c"), driver)


def over_the_driver(folder: Path) -> Path:
    driver, _ = both_libraries(folder)
    return compile_c(folder, "caller", CALLER, "-DDRIVER_ONLY", driver)


Layer = tuple[Callable[[Path], Path], str, tuple[int, int, int]]
"""Builds the program; the file that is probed; source, operation and number of the calls."""

LAYERS: dict[str, Layer] = {
    "runtime": (over_the_runtime, "libcudart.so.13", (1, 3, 1000)),
    "runtime linked in": (with_the_runtime_inside, "caller", (1, 3, 1000)),
    "driver": (over_the_driver, "libcuda.so.1", (4, 1, 1000)),
}


@pytest.mark.ebpf
@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        pytest.param((), tuple(LAYERS), id="every layer"),
        pytest.param(("--attach", "perf"), ("runtime",), id="older kernels"),
    ],
)
def test_every_launch_is_counted_once_whatever_layers_it_passes(
    flags: tuple[str, ...], layers: tuple[str, ...], tmp_path: Path
) -> None:
    database = tmp_path / "trace.db"
    with ExitStack() as stack:
        agent = stack.enter_context(tracing(tmp_path, *flags))
        jobs = {}
        for name in layers:
            build, library, _ = LAYERS[name]
            folder = tmp_path / name
            folder.mkdir()
            jobs[name] = stack.enter_context(job(build(folder)))
            wait_until(lambda probed=folder / library: attached(agent, probed), "links")  # type: ignore[misc]
        for running in jobs.values():
            go(running)
            assert said(running) == "done"
        wait_until(lambda: all(launches(database, running.pid) for running in jobs.values()), "counts")
        agent.process.terminate()
        assert agent.process.wait(30) == 0

        counted = {name: launches(database, running.pid) for name, running in jobs.items()}
        assert counted == {name: [LAYERS[name][2]] for name in layers}, agent.words()


@pytest.mark.ebpf
def test_a_killed_agent_leaves_no_probe_behind_and_the_job_goes_on(tmp_path: Path) -> None:
    program = over_the_runtime(tmp_path)
    with job(program) as running:
        with tracing(tmp_path) as agent:
            wait_until(lambda: attached(agent, tmp_path / "libcudart.so.13"), "links")
            links = links_of(agent.process.pid)
            assert links
            os.kill(agent.process.pid, signal.SIGKILL)
            wait_until(lambda: not any(link_lives(link) for link in links), "the links to go")
        go(running)

        assert said(running) == "done"
        assert running.poll() is None
