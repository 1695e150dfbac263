"""Whatever goes wrong has a name: filters of system calls, libraries written over, processes by the thousand."""

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import nullcontext
from pathlib import Path

import pytest

from ingero_agent.sources import ReadFailed
from ingero_agent.sources.trace_db import DatabaseSource
from ingero_agent.trace import kernel, seccomp
from ingero_agent.trace.annotations import send_annotation
from ingero_agent.trace.calibrate import Twins
from ingero_agent.trace.discovery import identify
from ingero_agent.trace.seccomp import CHILD, explain_exit
from ingero_testing.gpu_job import (
    COLLECTIVES,
    RUNTIME,
    attached,
    attachments,
    compile_c,
    go,
    job,
    link_lives,
    links_of,
    listening_port,
    said,
    tracing,
)
from ingero_testing.processes import BIN, Running, process, wait_until
from ingero_testing.trace_database import query

CALLS = """
#include <stddef.h>
#include <stdio.h>
#include <string.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { char bytes[128]; } ncclUniqueId;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
int cudaMalloc(void **, size_t);
int ncclCommInitRank(void **, int, ncclUniqueId, int);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int main(void) {
  dim3 one = {1, 1, 1};
  ncclUniqueId id;
  void *comm;
  memset(&id, 7, sizeof id);
  getchar();
  ncclCommInitRank(&comm, 1, id, 0);
  for (int i = 0; i < 1000; i++) cudaLaunchKernel(0, one, one, 0, 0, 0);
  for (int i = 0; i < 300; i++) cudaMalloc(0, 4096);
  for (int i = 0; i < 200; i++) ncclAllReduce(0, 0, 10, 7, 0, comm, 0);
  getchar();
}
"""
SHORT = """
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
int main(int argc, char **argv) {
  dim3 one = {1, 1, 1};
  getchar();
  for (int i = 0; i < atoi(argv[1]); i++) {
    pid_t child = fork();
    if (!child) { for (int call = 0; call < 3; call++) cudaLaunchKernel(0, one, one, 0, 0, 0); _exit(0); }
    wait(0);
    printf("%d ", child);
  }
  puts("done");
  fflush(stdout);
  getchar();
}
"""


def page(agent: Running) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{listening_port(agent)}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def launches(folder: Path, processes: set[int]) -> int:
    """Of these processes alone; others of this machine call as well."""
    counted = query(folder / "trace.db", "SELECT pid, count FROM event_aggregates WHERE source = 1 AND op = 3")
    return sum(count for pid, count in counted if pid in processes)


def ended(started: subprocess.Popen[bytes]) -> set[int]:
    """The processes that the short program has had."""
    *processes, word = said(started).split()
    assert word == "done"
    return set(map(int, processes))


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, ""), (-31, "dies of a return probe (signal 31)"), (3, "it is not known"), (1, "ended with 1")],
)
def test_how_the_process_that_tried_ended_says_whether_calls_can_be_timed(status: int, words: str) -> None:
    assert words in explain_exit(status)
    assert bool(explain_exit(status)) == bool(status)


def test_a_process_that_dies_under_its_filter_is_distinguished_from_one_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "attached", lambda *where, **how: nullcontext())
    assert seccomp.try_returns(0, 0) == ""

    killed = tmp_path / "child.py"
    killed.write_text("import os\nprint('ready', flush=True)\nos.read(0, 1)\nos.kill(os.getpid(), 31)\n")
    monkeypatch.setattr(seccomp, "CHILD", killed)
    assert "signal 31" in seccomp.try_returns(0, 0)


def test_the_filter_refuses_newer_calls_and_the_function_runs() -> None:
    """pidfd_open is such a call; the child's own work needs none."""
    code = CHILD.read_text().replace(
        "os._exit(0 if", "os._exit(9 if libc.syscall(434, os.getpid(), 0) >= 0 else 0 if"
    )
    twins = Twins()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, str(twins.descriptor), "10"], input=b"\n",
            pass_fds=[twins.descriptor], capture_output=True, timeout=60,
        )  # fmt: skip
    finally:
        twins.close()

    assert (done.returncode, done.stdout) == (0, b"ready\n"), done.stderr


UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


def test_where_no_program_can_be_loaded_gpus_and_annotations_go_on_and_nobody_is_said_to_be_idle(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "annotate.sock"
    command = (str(BIN / "ingero-agent"), "trace", "--db", str(tmp_path / "trace.db"), "--prometheus", "127.0.0.1:0",
               "--annotate", "--annotate-socket", str(socket))  # fmt: skip
    with process(tmp_path / "trace.log", *(UNPRIVILEGED if os.getuid() == 0 else ()), *command) as agent:
        wait_until(lambda: "listening" in agent.words(), "the page")
        assert send_annotation(socket, {"step": "1"}) == ""
        wait_until(lambda: "ingero_trace_annotations_total 1.0" in page(agent), "the annotation")
        text = page(agent)

    assert "cannot_trace" in agent.words()
    for capability in ("probes", "returns", "counts"):
        assert f'ingero_trace_capability{{capability="{capability}",mode="none"}} 1.0' in text
    with pytest.raises(ReadFailed):
        DatabaseSource(tmp_path / "trace.db", 60, gpus=1).read(time.time())


def test_where_nothing_else_is_wanted_the_reason_is_the_end(tmp_path: Path) -> None:
    command = (BIN / "ingero-agent", "trace", "--db", tmp_path / "trace.db")
    prefix = UNPRIVILEGED if os.getuid() == 0 else ()
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=120)

    assert done.returncode == 1
    assert "run as root, or give the container" in done.stderr


@pytest.mark.ebpf
def test_where_calls_may_not_be_timed_they_are_counted_exactly(tmp_path: Path) -> None:
    runtime = compile_c(tmp_path, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    nccl = compile_c(tmp_path, "libnccl.so.2", COLLECTIVES, "-shared", "-fPIC", "-DHASH_AT=64")
    program = compile_c(tmp_path, "calls", CALLS, str(runtime), str(nccl))
    counted = (
        "SELECT source, op, SUM(count), SUM(sum_arg0), SUM(sum_dur) FROM event_aggregates WHERE pid = ? GROUP BY 1, 2"
    )
    with (
        tracing(tmp_path, "--returns", "never", "--prometheus", "127.0.0.1:0") as agent,
        job(program) as running,
    ):
        wait_until(lambda: attached(agent, runtime, nccl), "the libraries")
        go(running)
        want = {(1, 3, 1000, 0, 0), (1, 1, 300, 300 * 4096, 0), (9, 1, 1, 0, 0), (9, 3, 200, 200 * 40, 0)}
        wait_until(lambda: want <= set(query(tmp_path / "trace.db", counted, running.pid)), "the calls")
        text = page(agent)

    assert 'ingero_trace_capability{capability="returns",mode="entry_only"} 1.0' in text
    assert "ingero_trace_lost_total{" not in text
    assert "calls_are_not_timed" in agent.words()


def test_a_library_with_a_new_name_link_or_mode_is_the_same_and_one_written_over_is_another(tmp_path: Path) -> None:
    library = tmp_path / "libcudart.so.12"
    library.write_bytes(b"code")
    before = identify(library)
    library = library.rename(tmp_path / "libcudart.so.13")
    library.chmod(0o600)
    os.link(library, tmp_path / "link")
    assert identify(library) == before

    os.utime(library, ns=(0, before.modified_ns + 1))
    assert identify(library) != before


@pytest.mark.ebpf
def test_a_library_that_is_written_over_is_let_go_of_and_the_new_one_counted(tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    other = compile_c(tmp_path, "other.so", "int before(int a) { return a * 3; }\n" + RUNTIME, "-shared", "-fPIC",
                      "-Wl,-soname,libcudart.so.12", "-pthread")  # fmt: skip
    program = compile_c(tmp_path, "short", SHORT, str(library))
    with tracing(tmp_path, "--prometheus", "127.0.0.1:0") as agent:
        with job(program, 0):
            wait_until(lambda: attached(agent, library), "the library")
        links = links_of(agent.process.pid)
        with other.open("rb") as new, library.open("r+b") as old:
            shutil.copyfileobj(new, old)
            old.truncate()
        wait_until(lambda: "library_replaced" in agent.words(), "the old file to be let go of")
        wait_until(lambda: sum(map(link_lives, links)) < len(links), "its links to go")
        with job(program, 5) as running:
            wait_until(lambda: attachments(agent, library) >= 2, "the new file")
            go(running)
            processes = ended(running)
            wait_until(lambda: launches(tmp_path, processes) >= 15, "the calls of five processes")
        assert launches(tmp_path, processes) == 15
        assert "ingero_trace_replaced_libraries_total 1.0" in page(agent)


@pytest.mark.ebpf
def test_processes_by_the_thousand_are_counted_or_said_to_be_lost(tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libcudart.so.12", RUNTIME, "-shared", "-fPIC", "-pthread")
    program = compile_c(tmp_path, "short", SHORT, str(library))
    with tracing(tmp_path, "--prometheus", "127.0.0.1:0") as agent, job(program, 2000) as running:
        wait_until(lambda: attached(agent, library), "the library")
        go(running)
        processes = ended(running)

        def lost() -> int:
            lines = (line for line in page(agent).splitlines() if line.startswith("ingero_trace_lost_total{"))
            return sum(int(float(line.split()[-1])) for line in lines)

        wait_until(lambda: launches(tmp_path, processes) + lost() >= 6000, "every call, counted or lost")
        assert 0 < launches(tmp_path, processes) <= 6000
        assert agent.process.poll() is None
