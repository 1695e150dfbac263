"""Call stacks of a late rank: when they are sampled, what they say, and the function that makes a real rank late."""

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ingero_agent.trace.events import Collective
from ingero_agent.trace.evidence import read_time_window
from ingero_agent.trace.findings import TimeWindow, find_causes
from ingero_agent.trace.queries import Filter, stack_rows
from ingero_agent.trace.stacks import (
    MAX_STACKS,
    MAX_THREADS,
    PERIOD_NS,
    REPEAT_SECONDS,
    CallStack,
    Sample,
    Target,
    choose_target,
    fold,
    is_due,
    outside,
    running_samples,
    waiting_samples,
)
from ingero_agent.trace.store import TraceStore
from ingero_contract.verdicts import parse_verdict
from ingero_testing.gpu_job import JOB, attached, build_job, children, compile_c, go, job, receiver, tracing
from ingero_testing.processes import BIN, wait_until

NAMED = "healthy;collectives=late_rank"
BUSY = """
__attribute__((noinline)) void load_batch(int microseconds) {
  long until = used() + microseconds;
  while (used() < until) for (volatile int i = 0; i < 300000; i++) {}
}
int main("""


def collective(pid: int, blocked_ns: int, **change: Any) -> Collective:
    base: dict[str, Any] = {
        "pid": pid, "tid": pid, "operation": "ncclAllReduce", "op_code": 3, "communicator": "ab", "rank": 0,
        "nranks": 4, "device": 0, "seq": 1, "exact": True, "dtype": 7, "reduce_op": 0, "size": 4000, "arrival_ns": 0,
        "enqueue_ns": 10, "blocked_ns": blocked_ns, "end_ns": blocked_ns,
    }  # fmt: skip
    return Collective(**{**base, **change})


@pytest.mark.parametrize(
    ("line", "last", "due"),
    [
        (NAMED, None, True),
        (NAMED, 100.0 - REPEAT_SECONDS, True),
        (NAMED, 101.0 - REPEAT_SECONDS, False),
        ("healthy;collectives=gpu_throttled", None, False),
        ("straggler;kind=slow", None, False),
        ("", None, False),
    ],
)
def test_sampling_is_due_while_fleet_names_the_node_for_a_late_rank_and_not_too_often(
    line: str, last: float | None, due: bool
) -> None:
    assert is_due(parse_verdict(line), last, now=100.0) is due


def test_the_process_that_waits_least_is_sampled_with_the_threads_that_call_collectives() -> None:
    late = [collective(2, 10, tid=tid) for tid in (21, 22, 22, 23, 24)]
    found = choose_target([*late, *(collective(1, 900) for _ in range(5)), collective(3, 0)], now_ns=10**9)

    assert found == Target(2, (2, 22, 21, 23))
    assert len(found.tids) == MAX_THREADS
    assert choose_target(late, now_ns=10**12) is None


def sample_record(tid: int, at: int, *addresses: int) -> bytes:
    body = struct.pack(f"=IIQQ{len(addresses)}Q", 1, tid, at, len(addresses), *addresses)
    return struct.pack("=IHH", 9, 0, 8 + len(body)) + body


def switch_record(tid: int, at: int, flags: int = 0) -> bytes:
    return struct.pack("=IHHIIQ", 14, flags, 24, 1, tid, at)


def test_a_sample_stands_for_a_period_or_for_the_time_off_the_processor() -> None:
    mark = 2**64 - 512
    running = sample_record(7, 50, mark, 3, 4)
    off = sample_record(7, 100, mark, 5) + switch_record(7, 101, 1 << 13) + switch_record(8, 150)

    assert running_samples(running + b"rest") == [Sample((3, 4), PERIOD_NS, 50)]
    assert waiting_samples(off + switch_record(7, 400)) == [Sample((5,), 300, 250)]
    assert waiting_samples(off) == running_samples(b"") == running_samples(b"\0" * 64) == []


def test_what_happens_during_a_wait_at_a_collective_is_left_out() -> None:
    samples = [Sample((1,), 10, at) for at in (100, 199, 200, 250, 301)]

    assert [one.at_ns for one in outside(samples, [collective(1, 100, end_ns=1300)], offset_ns=1000)] == [
        100,
        199,
        301,
    ]


def test_stacks_are_added_up_longest_first_without_waits() -> None:
    names = {1: "main", 2: "load", 3: "cudaStreamSynchronize", 4: "step"}
    samples = [Sample((2, 1), 10, 0), Sample((4, 1), 5, 0), Sample((2, 1), 10, 0), Sample((3, 1), 99, 0)]

    first, second = fold(samples, lambda address: names[address], 7, 1)
    assert (first.frames, first.samples, first.share) == (("main", "load"), 2, 0.8)
    assert (second.frames, second.samples, second.share) == (("main", "step"), 1, 0.2)
    assert len(fold([Sample((number,), 1, 0) for number in range(100)], str, 7, 1)) == MAX_STACKS


def test_a_sampling_is_stored_and_becomes_a_cause_with_its_stacks_as_evidence(tmp_path: Path) -> None:
    file = tmp_path / "trace.db"
    store = TraceStore(file)
    found = [
        CallStack(at_ns=at, pid=7, frames=("main", name), samples=count, nanoseconds=count * 10, sampled_ns=1000)
        for at, name, count in ((10**9, "old", 90), (2 * 10**9, "load", 70), (2 * 10**9, "parse", 30))
    ]
    store.stacks(found)
    store.close()
    wanted = Filter(begin=0, end=10)

    (cause,) = find_causes(read_time_window(file, wanted))
    assert (cause.kind, cause.subject) == ("late-rank-stack", "7")
    assert cause.summary.endswith("spends 70% of its time outside of collectives in load")
    assert cause.evidence == ("70% (70 samples): main > load", "30% (30 samples): main > parse")
    assert [row[-1] for row in stack_rows(file, wanted)] == ["main > old", "main > load", "main > parse"]
    assert find_causes(TimeWindow()) == []


@pytest.mark.ebpf
def test_the_function_that_makes_a_real_rank_late_is_named(tmp_path: Path) -> None:
    build_job(tmp_path)
    source = JOB.replace("int main(", BUSY, 1).replace(
        "(rank == late && shared->hurt ? extra : 0));", "0); if (rank == late) load_batch(extra);", 1
    )
    libraries = tmp_path / "libcudart.so.12", tmp_path / "libnccl.so.2"
    program = compile_c(tmp_path, "busy", source, *map(str, libraries), "-pthread")
    database = tmp_path / "trace.db"
    with (
        receiver(verdict=NAMED) as (port, _),
        tracing(
            tmp_path, "--otlp", f"http://127.0.0.1:{port}", "--otlp-interval", "0.2s", "--gpu-interval", "0s"
        ) as agent,
        job(program, 3, 1_000_000, 1000, 1, 20_000) as running,
    ):
        wait_until(lambda: attached(agent, *libraries), "both libraries")
        go(running)
        wait_until(lambda: "stacks_sampled" in agent.words(), "a sampling")
        wait_until(lambda: bool(stack_rows(database, Filter(begin=0, end=2**32))), "its stacks")
        late = sorted(children(running.pid))[1]
        done = subprocess.run(
            [BIN / "ingero-agent", "explain", "--db", str(database), "--json"], capture_output=True, timeout=60,
            check=True,
        )  # fmt: skip

    found = {one["kind"]: one for one in json.loads(done.stdout)}["late-rank-stack"]
    assert found["subject"] == str(late)
    assert found["summary"].endswith("in load_batch")
    assert "main > load_batch" in found["evidence"][0]
