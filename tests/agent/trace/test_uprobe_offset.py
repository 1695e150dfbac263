"""Where in a function its probe lies, and which functions are expensive to probe."""

import platform
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_agent.trace import kernel
from ingero_agent.trace.events import Collective
from ingero_agent.trace.governor import COLLECTIVE, ENTRY, PAIR, WAIT
from ingero_agent.trace.probes.table import FUNCTIONS, HOST
from ingero_agent.trace.selection import Selection
from ingero_agent.trace.targets import PEEK_BYTES, uprobe_offset
from ingero_agent.trace.tracer import EbpfTracer
from ingero_testing.gpu_job import COLLECTIVES, RUNTIME, compile_c, go, job, said
from ingero_testing.processes import wait_until

NUMBERS = {function.name: function.number for function in FUNCTIONS}


@pytest.mark.parametrize(
    ("code", "skip", "expensive"),
    [
        pytest.param("554889e5", 0, False, id="push"),
        pytest.param("4157415641554989", 0, False, id="push of a high register"),
        pytest.param("90b800000000", 0, False, id="nop"),
        pytest.param("e900000000", 0, False, id="jump"),
        pytest.param("0f8400000000", 0, False, id="conditional jump"),
        pytest.param("4885ff740e", 0, True, id="test"),
        pytest.param("4883ec18", 0, True, id="sub"),
        pytest.param("f30f1efa554889e5", 4, False, id="landing mark, push"),
        pytest.param("f30f1efa4885ff", 4, True, id="landing mark, test"),
        pytest.param("f30f1efa", 4, True, id="nothing behind"),
    ],
)
def test_a_probe_lies_behind_a_landing_mark_and_some_first_instructions_are_expensive(
    code: str, skip: int, expensive: bool
) -> None:
    assert uprobe_offset(bytes.fromhex(code), "x86_64") == (skip, expensive)
    assert uprobe_offset(bytes.fromhex(code), "aarch64") == (0, False)


@given(st.binary(max_size=PEEK_BYTES), st.sampled_from(["x86_64", "aarch64", "riscv64"]))
def test_any_code_has_an_entry_point_within_it(code: bytes, machine: str) -> None:
    skip, _ = uprobe_offset(code, machine)

    assert skip in (0, 4)
    assert skip <= len(code)


def test_every_function_has_a_price() -> None:
    prices = {function.name: function.price for function in FUNCTIONS}

    assert (prices["cudaLaunchKernel"], prices["ncclGroupEnd"], prices["cudaSetDevice"]) == (ENTRY,) * 3
    assert (prices["cudaMalloc"], prices["ncclCommInitRank"], prices["cudaGraphInstantiate"]) == (PAIR,) * 3
    assert (prices["ncclAllReduce"], prices["ncclSend"]) == (COLLECTIVE,) * 2
    assert (prices["cudaStreamSynchronize"], prices["cudaMemcpy"]) == (WAIT,) * 2


CLOCK_NS = 1_000_000
"""How far the agent's clock may be off; the group is open for thirty times that before it ends."""

CALLER = r"""
#include <stddef.h>
#include <stdio.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { char bytes[128]; } ncclUniqueId;
int cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *);
int cudaStreamSynchronize(void *);
int ncclCommInitRank(void **, int, ncclUniqueId, int);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclBroadcast(const void *, void *, size_t, int, int, void *, void *);
int ncclAlltoAll(const void *, void *, size_t, int, void *, void *);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int main(void) {
  dim3 one = {1, 1, 1};
  ncclUniqueId id = {{1}};
  struct timespec now, pause = {0, 30000000};
  void *comm;
  getchar();
  ncclCommInitRank(&comm, 1, id, 0);
  for (int i = 0; i < 1000; i++) cudaLaunchKernel(0, one, one, 0, 0, 0);
  ncclGroupStart();
  ncclGroupStart();
  ncclAllReduce(0, 0, 1000, 7, 0, comm, 0);
  nanosleep(&pause, 0);
  ncclGroupEnd();
  clock_gettime(CLOCK_REALTIME, &now);
  ncclGroupEnd();
  cudaStreamSynchronize(0);
  printf("%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
  fflush(stdout);
  getchar();
  clock_gettime(CLOCK_REALTIME, &now);
  ncclAllReduce(0, 0, 1000, 7, 0, comm, 0);
  nanosleep(&pause, 0);
  cudaStreamSynchronize(0);
  ncclBroadcast(0, 0, 500, 0, 3, comm, 0);
  cudaStreamSynchronize(0);
  ncclAlltoAll(0, 0, 250, 8, comm, 0);
  cudaStreamSynchronize(0);
  printf("%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
  fflush(stdout);
  getchar();
}
"""


def left_behind(tracer: EbpfTracer, pid: int) -> set[str]:
    """Maps of the kernel side that hold something of a process."""
    sizes = {"comms": 16, "last_coll": 4, "start": 8, "group": 4, "device": 4}
    tables = {name: kernel.Map(tracer._descriptors[name], size, 8) for name, size in sizes.items()}
    return {
        name
        for name, table in tables.items()
        if any(struct.unpack_from("=I", key)[0] == pid for key in table.every_key())
    }


@pytest.mark.ebpf
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86_64 processor")
def test_calls_behind_landing_marks_are_counted_with_their_arguments_and_a_group_arrives_at_its_end(
    tmp_path: Path,
) -> None:
    marked = ("-shared", "-fPIC", "-pthread", "-fcf-protection=branch", "-fshrink-wrap")
    runtime = compile_c(tmp_path, "libcudart.so.12", RUNTIME, *marked)
    nccl = compile_c(tmp_path, "libnccl.so.2", COLLECTIVES, *marked, "-DHASH_AT=64")
    program = compile_c(tmp_path, "caller", CALLER, str(runtime), str(nccl))
    tracer = EbpfTracer(selection=Selection(only=re.compile(re.escape(str(program)))))  # others begin otherwise
    try:
        with job(program) as running:

            def mapped() -> bool:
                tracer.scan()
                return len(tracer.found.get(running.pid, [])) == 2

            wait_until(mapped, "both libraries")
            go(running)
            ended = int(said(running))
            go(running)
            begun = int(said(running))
            mine = [one for one in tracer.read_counts() if one.pid == running.pid and one.function.source != HOST]
            single = [one for one in tracer.read_events() if isinstance(one, Collective) and one.pid == running.pid]
            expensive = tracer.single_stepped
            remembered = left_behind(tracer, running.pid)
        tracer.sweep()
        forgotten = left_behind(tracer, running.pid)
    finally:
        tracer.close()

    assert {one.function.name: one.count for one in mine} == {
        "cudaLaunchKernel": 1000, "cudaStreamSynchronize": 4, "ncclCommInitRank": 1, "ncclAllReduce": 2,
        "ncclBroadcast": 1, "ncclAlltoAll": 1, "ncclGroupStart": 2, "ncclGroupEnd": 2,
    }  # fmt: skip
    launches = next(one for one in mine if one.function.name == "cudaLaunchKernel")
    assert 1 <= launches.cold < 100, "a burst is cold once, and again where something else had the processor"
    assert [(one.operation, one.seq, one.size, one.reduce_op) for one in single] == [
        ("ncclAllReduce", 1, 4000, 0), ("ncclAllReduce", 2, 4000, 0),
        ("ncclBroadcast", 3, 500, None), ("ncclAlltoAll", 4, 2000, None),
    ]  # fmt: skip
    assert (remembered, forgotten) == ({"comms", "last_coll"}, set())
    assert single[0].arrival_ns > ended - CLOCK_NS
    assert single[1].arrival_ns > begun - CLOCK_NS
    assert NUMBERS["cudaStreamSynchronize"] in expensive
    assert NUMBERS["cudaLaunchKernel"] not in expensive
