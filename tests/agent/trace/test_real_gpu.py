"""A real GPU: memory and clocks of the driver, and a program whose CUDA and NCCL calls succeed.

`make test-gpu` runs this with NVIDIA's own libraries, as root.
"""

import sys
from pathlib import Path

import pytest

from ingero_agent.nvml import NvmlReader, find_reader
from ingero_testing.gpu_job import attached, communicator_hash, go, job, nvidia_libraries, said, tracing
from ingero_testing.needs import needs_nvidia_libraries
from ingero_testing.processes import wait_until
from ingero_testing.trace_database import query

FOUND = find_reader()
pytestmark = pytest.mark.skipif(isinstance(FOUND, str), reason=f"needs an NVIDIA GPU: {FOUND}")

COPIES, COPIED, CALLS, ELEMENTS, ALLOCATED = 20, 64 << 20, 50, 1 << 20, 1 << 30

CALLER = f"""
import ctypes, sys
cudart, nccl = (ctypes.CDLL(file) for file in sys.argv[1:])
class Identity(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
def must(result):
    if result:
        sys.exit(f"a call failed: {{result}}")
def line(text):
    print(text, flush=True)
    sys.stdin.readline()
line("mapped")
size, host, device = ctypes.c_size_t, ctypes.create_string_buffer({COPIED}), ctypes.c_void_p()
must(cudart.cudaMalloc(ctypes.byref(device), size({ALLOCATED})))
for _ in range({COPIES}):
    must(cudart.cudaMemcpy(device, host, size({COPIED}), 1))
identity, communicator = Identity(), ctypes.c_void_p()
must(nccl.ncclGetUniqueId(ctypes.byref(identity)))
must(nccl.ncclCommInitRank(ctypes.byref(communicator), 1, identity, 0))
for _ in range({CALLS}):
    must(nccl.ncclAllReduce(device, device, size({ELEMENTS}), 7, 0, communicator, None))
    must(cudart.cudaStreamSynchronize(None))
line(bytes(identity.bytes).hex())
"""


def reader() -> NvmlReader:
    assert isinstance(FOUND, NvmlReader)
    return FOUND


def test_every_gpu_has_memory_and_a_clock() -> None:
    found = reader().read()

    assert len(found) == reader().count
    for gpu in found:
        assert gpu.uuid.startswith("GPU-")
        assert 0 < gpu.used + gpu.free <= gpu.total
        assert gpu.sm_mhz and gpu.sm_max_mhz
        assert 0 < gpu.sm_mhz <= gpu.sm_max_mhz
        assert gpu.throttle is not None


@pytest.mark.ebpf
@needs_nvidia_libraries
def test_calls_that_succeed_are_counted_and_collectives_have_number_size_and_communicator(tmp_path: Path) -> None:
    libraries, database = nvidia_libraries() or (), tmp_path / "trace.db"
    counted = "SELECT source, op, SUM(count) FROM event_aggregates WHERE pid = ? GROUP BY 1, 2"
    want = {(1, 4, COPIES), (1, 5, CALLS), (9, 3, CALLS), (9, 1, 1)}
    stored = "SELECT rank, nranks, comm_hash, seq, seq_exact, bytes FROM collectives WHERE pid = ? ORDER BY seq"
    before = sum(gpu.used for gpu in reader().read())
    with tracing(tmp_path) as agent, job(Path(sys.executable), "-c", CALLER, *libraries) as caller:
        assert said(caller) == "mapped"
        wait_until(lambda: attached(agent, *libraries), "both libraries")
        go(caller)
        communicator = communicator_hash(bytes.fromhex(said(caller)))
        wait_until(lambda: want <= set(query(database, counted, caller.pid)), f"{want}")
        wait_until(lambda: len(query(database, stored, caller.pid)) == CALLS, "every collective")
        used = sum(gpu.used for gpu in reader().read())

    assert query(database, stored, caller.pid) == [
        (0, 1, communicator, number, 1, 4 * ELEMENTS) for number in range(1, CALLS + 1)
    ]
    assert used - before >= ALLOCATED
