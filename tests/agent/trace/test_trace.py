"""Counting calls of unmodified processes: the pure parts everywhere, the kernel parts as root."""

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from ingero_agent.sources import ReadFailed
from ingero_agent.sources.trace_db import DatabaseSource
from ingero_agent.trace import elf
from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.discovery import parse_maps
from ingero_agent.trace.probes.table import FUNCTIONS, element_size, library_functions
from ingero_agent.trace.queries import Filter, operations
from ingero_agent.trace.store import TraceStore
from ingero_testing.gpu_job import attached, compile_c, go, job, tracing
from ingero_testing.needs import needs_bcc
from ingero_testing.processes import Running, wait_until
from ingero_testing.trace_database import query

T = TypeVar("T")
LIBRARY = """
#include <stddef.h>
typedef struct { unsigned x, y, z; } dim3;
__attribute__((noinline)) int cudaLaunchKernel(void *f, dim3 g, dim3 b, void **a, size_t s, void *t)
{ __asm__(""); return 0; }
__attribute__((noinline)) int cudaMalloc(void **p, size_t n) { __asm__(""); return 0; }
__attribute__((noinline)) int cudaMemcpy2D(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int k)
{ __asm__(""); return 0; }
"""
JOB = """
#include <stddef.h>
#include <stdio.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
int cudaMalloc(void **, size_t);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int main(void) {
  dim3 one = {1, 1, 1};
  getchar();
  for (int i = 0; i < 50000; i++) cudaLaunchKernel(0, one, one, 0, 0, 0);
  for (int i = 0; i < 300; i++) cudaMalloc(0, 4096);
  for (int i = 0; i < 200; i++) cudaMemcpy2D(0, 0, 0, 0, 10, 20, 2);
  getchar();
}
"""

LAUNCH = next(function for function in FUNCTIONS if function.name == "cudaLaunchKernel")


def test_any_version_of_a_library_is_found_and_a_data_mapping_is_not() -> None:
    text = (
        "7f00-7f01 r-xp 00000000 08:01 12 /opt/a b/libcudart.so.13\n"
        "7f02-7f03 r--p 00000000 08:01 12 /opt/libcudart.so.12\n"
        "7f04-7f05 r-xp 00000000 08:01 13 /opt/libnccl.so.2 (deleted)\n"
        "7f06-7f07 r-xp 00000000 08:01 14 /opt/libcudart_static_notes.so\n"
        "7f08-7f09 r-xp 00000000 00:00 0 \n"
        "0041f000-006cf000 r-xp 00000000 08:01 15 /opt/libcuda.so.1\n"
    )

    assert list(parse_maps(text)) == [
        ("cudart", "7f00-7f01", "/opt/a b/libcudart.so.13"),
        ("nccl", "7f04-7f05", "/opt/libnccl.so.2"),
        ("cuda", "41f000-6cf000", "/opt/libcuda.so.1"),
    ]


def test_numbers_of_functions_fit_the_cookie_and_broadcast_is_counted_once() -> None:
    assert len({function.number for function in FUNCTIONS}) == len(FUNCTIONS) < 256
    assert "ncclBcast" not in library_functions("nccl")
    assert "cuLaunchKernel" not in library_functions("cudart")


def test_bytes_of_a_collective_follow_the_data_type_and_are_absent_for_an_unknown_one() -> None:
    assert [element_size(dtype) for dtype in (0, 2, 6, 7, 9, 12, 255)] == [1, 4, 2, 4, 2, 0, 0]


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_a_file_that_is_no_library_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(elf.NotElf):
        elf.function_offsets(data, {"cudaMalloc"})


def test_what_was_called_between_two_polls_is_counted_once(tmp_path: Path) -> None:
    store, source = TraceStore(tmp_path / "a.db"), DatabaseSource(tmp_path / "a.db", 60, gpus=1)
    found = []
    for now, count in ((991.0, 10), (993.0, 5), (993.5, 7), (1004.0, 21), (1006.0, 0), (990.0, 4), (992.0, 6)):
        store.add([CallCount(LAUNCH, 7, count, nanoseconds=count * 10**6)], now)
        found.append(source.read(now))
    unchanged = source.read(993.0)
    store.close()

    assert [(one.launches, one.rate) if one else None for one in found] == [
        None, (5, 2.5), (7, 14.0), (21, 2.0), (0, 0.0), None, (6, 3.0)
    ]  # fmt: skip
    assert found[1] is not None and found[1].compute == pytest.approx(0.0025)
    assert unchanged is None


def test_a_trace_agent_that_fell_silent_is_no_workload_that_stopped(tmp_path: Path) -> None:
    store, source = TraceStore(tmp_path / "a.db"), DatabaseSource(tmp_path / "a.db", 60, gpus=1)
    store.add([CallCount(LAUNCH, 7, 10)], 1000.0)
    store.close()

    assert source.read(1001.0) is None
    with pytest.raises(ReadFailed, match="has written nothing for 40 s"):
        source.read(1040.0)


def test_the_time_in_which_no_tracer_was_there_is_not_taken_for_a_drop_of_the_rate(tmp_path: Path) -> None:
    source = DatabaseSource(tmp_path / "a.db", 60, gpus=1)
    found = []
    for begun, polls in ((990.0, ((991.0, 10), (993.0, 20), (994.0, 10))), (1004.0, ((1005.0, 10), (1006.0, 10)))):
        store = TraceStore(tmp_path / "a.db")
        store.begin(begun)
        for now, count in polls:
            store.add([CallCount(LAUNCH, 7, count)], now)
            if now != 994.0:
                found.append(source.read(now))
        store.close()

    assert [one and (one.rate, one.seconds) for one in found] == [None, (10.0, 2.0), (10.0, 2.0), (10.0, 1.0)]


def as_nobody(work: Callable[[], T]) -> T:
    """Do something as a user who may write nowhere, in a process of its own."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setresgid(65532, 65532, 65532)
                os.setresuid(65532, 65532, 65532)
            os.write(theirs, pickle.dumps(work()))
        except BaseException as error:
            os.write(theirs, pickle.dumps(error))
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        found = pickle.loads(answer.read())
    os.waitpid(child, 0)
    if isinstance(found, BaseException):
        raise found
    return found


@pytest.fixture
def locked(open_folder: Path) -> Iterator[Path]:
    """A folder that others may read and not write."""
    folder = open_folder / "state"
    folder.mkdir()
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)


@pytest.mark.parametrize("killed", [False, True])
def test_between_two_tracers_the_database_says_nothing_new_to_who_may_not_write_next_to_it(
    locked: Path, killed: bool
) -> None:
    store, file = TraceStore(locked / "a.db"), locked / "a.db"
    store.add([CallCount(LAUNCH, 7, 10)], 1000.0)
    if killed:
        for one in ("a.db", "a.db-wal", "a.db-shm"):
            shutil.copyfile(locked / one, locked / one.replace("a", "b", 1))
        file = locked / "b.db"
    store.close()
    locked.chmod(0o555)

    def polls() -> list[object]:
        source = DatabaseSource(file, 60, gpus=1)
        try:
            return [source.read(1001.0), source.read(1020.0), source.read(1040.0)]
        except ReadFailed as error:
            return [str(error)]

    assert as_nobody(polls) == [f"{file}: the trace agent has written nothing for 40 s"]
    assert as_nobody(lambda: operations(file, Filter(begin=900.0, end=1100.0)))[0][4] == 10


def test_a_database_that_is_gone_for_a_moment_is_no_failed_poll(tmp_path: Path) -> None:
    store, source = TraceStore(tmp_path / "a.db"), DatabaseSource(tmp_path / "a.db", 60, gpus=1)
    store.add([CallCount(LAUNCH, 7, 10)], 1000.0)
    store.close()
    first = source.read(1001.0)
    (tmp_path / "a.db").unlink()

    assert (first, source.read(1002.0)) == (None, None)
    with pytest.raises(ReadFailed, match="unable to open database file"):
        source.read(1031.0)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A tracer with no consumer, and its database."""
    folder = tmp_path_factory.mktemp("tracer")
    with tracing(folder) as agent:
        yield agent, folder / "trace.db"


@pytest.mark.ebpf
def test_calls_of_two_processes_are_counted_exactly_with_no_consumer(
    tmp_path: Path, traced: tuple[Running, Path]
) -> None:
    agent, database = traced
    library = compile_c(tmp_path, "libcudart.so.13", LIBRARY, "-shared", "-fPIC")
    program = compile_c(tmp_path, "job", JOB, str(library))
    with job(program) as one, job(program) as other:
        wait_until(lambda: attached(agent, library), "links")
        go(one)
        go(other)

        def rows() -> list[tuple[int, int, int, int]]:
            text = (
                "SELECT pid, op, SUM(count), SUM(sum_arg0) FROM event_aggregates "
                "WHERE source = 1 AND pid IN (?, ?) GROUP BY pid, op"
            )
            return query(database, text, one.pid, other.pid)

        counted = ((3, 50000, 0), (1, 300, 300 * 4096), (9, 200, 200 * 200))
        want = {(pid, *row) for pid in (one.pid, other.pid) for row in counted}
        wait_until(lambda: set(rows()) == want, f"{want}")


@needs_bcc
@pytest.mark.ebpf
def test_programs_that_bcc_compiled_count_the_same(tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libcudart.so.13", LIBRARY, "-shared", "-fPIC")
    program = compile_c(tmp_path, "job", JOB, str(library))
    with tracing(tmp_path, "--programs", "compiled") as agent, job(program) as running:
        wait_until(lambda: attached(agent, library), "links")
        go(running)

        def rows() -> set[tuple[int, int]]:
            text = "SELECT op, SUM(count) FROM event_aggregates WHERE source = 1 AND pid = ? GROUP BY op"
            return set(query(tmp_path / "trace.db", text, running.pid))

        wait_until(lambda: rows() == {(3, 50000), (1, 300), (9, 200)}, "the counts")
        assert '"origin": "compiled"' in agent.words()


NCCL = """
#include <stddef.h>
__attribute__((noinline)) int ncclAllReduce(const void *s, void *r, size_t n, int type, int op,
  void *comm, void *stream)
{ __asm__(""); return 0; }
"""
NCCL_JOB = """
#include <stddef.h>
#include <stdio.h>
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int main(void) {
  getchar();
  for (int i = 0; i < 100; i++) ncclAllReduce(0, 0, 1000, 7, 0, (void *)64, 0);
  getchar();
}
"""


@pytest.mark.ebpf
def test_collectives_are_counted_in_bytes_not_in_elements(tmp_path: Path, traced: tuple[Running, Path]) -> None:
    agent, database = traced
    library = compile_c(tmp_path, "libnccl.so.2", NCCL, "-shared", "-fPIC")
    program = compile_c(tmp_path, "job", NCCL_JOB, str(library))
    with job(program) as running:
        wait_until(lambda: attached(agent, library), "links")
        go(running)

        def rows() -> list[tuple[int, int, int]]:
            text = (
                "SELECT source, SUM(count), SUM(sum_arg0) FROM event_aggregates "
                "WHERE pid = ? AND source = 9 GROUP BY 1"
            )
            return query(database, text, running.pid)

        wait_until(lambda: rows() == [(9, 100, 400_000)], "100 collectives")
