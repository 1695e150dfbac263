"""NVIDIA's own libraries, which fail cleanly without a GPU: the probes see real registers and real stacks.

`make gpu-libraries` downloads them.
"""

import sys
from pathlib import Path

import pytest

from ingero_testing.gpu_job import attached, communicator_hash, go, job, nvidia_libraries, said, tracing
from ingero_testing.needs import needs_nvidia_libraries
from ingero_testing.processes import wait_until
from ingero_testing.trace_database import query

REAL = nvidia_libraries()
IDENTITY = bytes((i * 37 + 200) % 256 for i in range(128))
pytestmark = [
    pytest.mark.ebpf,
    needs_nvidia_libraries,
]

CALLER = """
import ctypes, sys
cudart, nccl = (ctypes.CDLL(file) for file in sys.argv[2:])
class Dim(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]
class Identity(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
print("mapped", flush=True)
sys.stdin.readline()
one, pointer = Dim(1, 1, 1), ctypes.c_void_p()
for _ in range(500):
    cudart.cudaLaunchKernel(None, one, one, None, ctypes.c_size_t(0), None)
for _ in range(300):
    cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096))
for _ in range(200):
    cudart.cudaStreamSynchronize(None)
for _ in range(50):
    nccl.ncclAllReduce(None, None, ctypes.c_size_t(1000), 7, 0, None, None)
identity = Identity((ctypes.c_ubyte * 128)(*bytes.fromhex(sys.argv[1])))
print(nccl.ncclCommInitRank(ctypes.byref(pointer), 16, identity, 5), flush=True)
sys.stdin.readline()
"""


def test_calls_into_the_real_libraries_are_counted_and_a_failed_communicator_has_its_rank(tmp_path: Path) -> None:
    libraries, database = REAL or (), tmp_path / "trace.db"
    counted = "SELECT source, op, SUM(count) FROM event_aggregates WHERE pid = ? GROUP BY 1, 2"
    want = {(1, 3, 500), (1, 1, 300), (1, 5, 200), (9, 3, 50), (9, 1, 1)}
    program = (Path(sys.executable), "-c", CALLER, IDENTITY.hex())
    with tracing(tmp_path) as agent, job(*program, *libraries) as caller:
        assert said(caller) == "mapped"
        wait_until(lambda: attached(agent, *libraries), "both libraries")
        go(caller)
        result = int(said(caller))
        wait_until(lambda: want <= set(query(database, counted, caller.pid)), f"{want}")

    assert result != 0
    assert query(
        database, "SELECT rank, world_size, comm, ret_code FROM events WHERE source = 9 AND pid = ?", caller.pid
    ) == [(5, 16, communicator_hash(IDENTITY), result)]
