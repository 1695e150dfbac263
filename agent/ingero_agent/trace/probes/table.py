"""The table of probed functions: how each is probed, and how its calls are stored in the database.

The numbers of sources and operations are the published agent's; operations from 64 upward are ours.
"""

from dataclasses import dataclass
from typing import Final

from ingero_agent.trace.governor import COLLECTIVE, CORE, ENTRY, LAUNCH, MEMORY, PAIR, WAIT

RUNTIME, HOST, DRIVER, GRAPH, NCCL = 1, 3, 4, 8, 9
"""Sources: CUDA runtime, the kernel, CUDA driver, CUDA graphs, NCCL."""

PLAIN, SIZE_1, COPY, COPY_2D, COPY_PEER, HANDLE_0, SET_DEVICE, COPY_DRIVER = range(8)
INIT_RANK, INIT_SCALABLE, INIT_ALL, SPLIT, DESTROY = range(16, 21)
COMM_4, COMM_5, COMM_6, POINT_TO_POINT, ROOTED = range(24, 29)
GROUP_START, GROUP_END = 32, 33

DIRECTIONS: Final = ("h2h", "h2d", "d2h", "d2d", "default", "unknown")
"""Copy directions by the kernel program's `kind`."""

ELEMENT_SIZES: Final = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of an element by NCCL's data type number."""

ELEMENT_SHIFTS: Final = sum((size.bit_length() - 1) << 2 * number for number, size in enumerate(ELEMENT_SIZES))
"""The same for the kernel program: their binary logarithms, two bits each."""

PROGRAMS: Final[dict[str, tuple[str, str | None]]] = {
    "launch": ("launch_enter", None),
    "device": ("device_enter", None),
    "call": ("call_enter", "call_return"),
    "init": ("init_enter", "init_return"),
    "init_all": ("init_enter", "init_all_return"),
    "destroy": ("destroy_enter", None),
    "coll": ("coll_enter", "coll_return"),
    "group": ("group_enter", None),
}
"""The pair of programs (at entry, at return) behind each kind of probe."""


@dataclass(frozen=True)
class Function:
    """One probed function. `number` is its identity in the kernel; `waits`: it blocks until the GPU is done."""

    number: int
    name: str
    source: int
    operation: int
    kind: str = "call"
    shape: int = PLAIN
    waits: bool = False

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy, which has a direction."""
        return self.shape in (COPY, COPY_2D, COPY_PEER, COPY_DRIVER)

    @property
    def group(self) -> str:
        """The governor's group that it belongs to."""
        if self.kind == "launch":
            return LAUNCH
        return MEMORY if self.kind == "call" and not self.waits and self.source != GRAPH else CORE

    @property
    def price(self) -> str:
        """The kind of cost of one call."""
        if self.kind == "coll":
            return COLLECTIVE
        if PROGRAMS.get(self.kind, ("", None))[1] is None:
            return ENTRY
        return WAIT if self.waits else PAIR

    def cookie(self, slot: int) -> int:
        """The attach cookie, read by the kernel program: function, shape of the arguments, library slot."""
        return self.number | self.shape << 8 | slot << 16 | int(self.waits) << 24


_ROWS: Final[tuple[tuple[str, int, int, str, int, bool], ...]] = (
    ("cudaLaunchKernel", RUNTIME, 3, "launch", PLAIN, False),
    ("cudaLaunchKernelExC", RUNTIME, 3, "launch", PLAIN, False),
    ("cudaGraphLaunch", GRAPH, 4, "launch", PLAIN, False),
    ("cudaStreamBeginCapture", GRAPH, 1, "call", HANDLE_0, False),
    ("cudaStreamEndCapture", GRAPH, 2, "call", HANDLE_0, False),
    ("cudaGraphInstantiate", GRAPH, 3, "call", PLAIN, False),
    ("cudaGraphInstantiateWithFlags", GRAPH, 3, "call", PLAIN, False),
    ("cudaMalloc", RUNTIME, 1, "call", SIZE_1, False),
    ("cudaMallocManaged", RUNTIME, 8, "call", SIZE_1, False),
    ("cudaMallocAsync", RUNTIME, 64, "call", SIZE_1, False),
    ("cudaFree", RUNTIME, 2, "call", PLAIN, False),
    ("cudaFreeAsync", RUNTIME, 65, "call", PLAIN, False),
    ("cudaMemcpy", RUNTIME, 4, "call", COPY, True),
    ("cudaMemcpyAsync", RUNTIME, 7, "call", COPY, False),
    ("cudaMemcpy2D", RUNTIME, 9, "call", COPY_2D, True),
    ("cudaMemcpy2DAsync", RUNTIME, 10, "call", COPY_2D, False),
    ("cudaMemcpyPeer", RUNTIME, 11, "call", COPY_PEER, False),
    ("cudaMemcpyPeerAsync", RUNTIME, 12, "call", COPY_PEER, False),
    ("cudaStreamSynchronize", RUNTIME, 5, "call", HANDLE_0, True),
    ("cudaDeviceSynchronize", RUNTIME, 6, "call", PLAIN, True),
    ("cudaEventSynchronize", RUNTIME, 66, "call", PLAIN, True),
    ("cudaSetDevice", RUNTIME, 67, "device", SET_DEVICE, False),
    ("cuLaunchKernel", DRIVER, 1, "launch", PLAIN, False),
    ("cuLaunchKernelEx", DRIVER, 1, "launch", PLAIN, False),
    ("cuGraphLaunch", GRAPH, 4, "launch", PLAIN, False),
    ("cuMemAlloc_v2", DRIVER, 5, "call", SIZE_1, False),
    ("cuMemAllocManaged", DRIVER, 6, "call", SIZE_1, False),
    ("cuMemcpy", DRIVER, 2, "call", COPY_DRIVER, True),
    ("cuMemcpyAsync", DRIVER, 3, "call", COPY_DRIVER, False),
    ("cuCtxSynchronize", DRIVER, 4, "call", PLAIN, True),
    ("cuStreamSynchronize", DRIVER, 64, "call", HANDLE_0, True),
    ("ncclCommInitRank", NCCL, 1, "init", INIT_RANK, False),
    ("ncclCommInitRankConfig", NCCL, 64, "init", INIT_RANK, False),
    ("ncclCommInitRankScalable", NCCL, 65, "init", INIT_SCALABLE, False),
    ("ncclCommInitAll", NCCL, 9, "init_all", INIT_ALL, False),
    ("ncclCommSplit", NCCL, 66, "init", SPLIT, False),
    ("ncclCommShrink", NCCL, 74, "init", SPLIT, False),
    ("ncclCommDestroy", NCCL, 2, "destroy", DESTROY, False),
    ("ncclCommAbort", NCCL, 67, "destroy", DESTROY, False),
    ("ncclAllReduce", NCCL, 3, "coll", COMM_5, False),
    ("ncclReduceScatter", NCCL, 5, "coll", COMM_5, False),
    ("ncclAllGather", NCCL, 4, "coll", COMM_4, False),
    ("ncclBroadcast", NCCL, 6, "coll", ROOTED, False),
    ("ncclReduce", NCCL, 68, "coll", COMM_6, False),
    ("ncclAlltoAll", NCCL, 71, "coll", COMM_4, False),
    ("ncclGather", NCCL, 72, "coll", ROOTED, False),
    ("ncclScatter", NCCL, 73, "coll", ROOTED, False),
    ("ncclSend", NCCL, 7, "coll", POINT_TO_POINT, False),
    ("ncclRecv", NCCL, 8, "coll", POINT_TO_POINT, False),
    ("ncclGroupStart", NCCL, 69, "group", GROUP_START, False),
    ("ncclGroupEnd", NCCL, 70, "group", GROUP_END, False),
    ("sched_switch", HOST, 1, "sched", PLAIN, False),
    ("disk_wait", HOST, 64, "sched", PLAIN, False),
)  # fmt: skip

FUNCTIONS: Final = tuple(Function(number, *row) for number, row in enumerate(_ROWS, start=1))
"""`ncclBcast` is missing on purpose: it calls `ncclBroadcast`, and both would count."""


SCHED_SWITCH, DISK_WAIT = (
    next(function for function in FUNCTIONS if function.name == name) for name in ("sched_switch", "disk_wait")
)
"""Operations that are not calls: time in which threads wait for a processor, and in which they wait for a disk."""

SCHED_PROGRAMS: Final = {"on_switch": "sched_switch", "on_wakeup": "sched_wakeup"}
"""Programs of the scheduler by their tracepoint."""

MAPS: Final = (
    "config", "rank_offset", "lost", "agg", "coll", "start", "comms", "group", "last_coll", "device", "events",
)  # fmt: skip
"""Maps that the agent reads or writes."""

SCHED_MAPS: Final = ("tracked", "off", "pushed")

NUMBERS: Final = {
    "SCHED_SWITCH": SCHED_SWITCH.number, "DISK_WAIT": DISK_WAIT.number,
    "DATA_TYPES": len(ELEMENT_SIZES), "ELEMENT_SHIFTS": ELEMENT_SHIFTS,
}  # fmt: skip
"""Definitions of the programs that this table makes."""


def element_size(dtype: int) -> int:
    """Bytes of an element of NCCL's data type; 0 for one that is not known, never a guess."""
    return ELEMENT_SIZES[dtype] if dtype < len(ELEMENT_SIZES) else 0


IMPORTANT: Final = frozenset(
    (
        "cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamSynchronize", "cudaDeviceSynchronize",
        "cudaEventSynchronize", "cudaMemcpy", "cuLaunchKernel", "cuStreamSynchronize", "ncclCommInitRank",
        "ncclCommInitRankConfig",
        "ncclCommDestroy", "ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast",
    )
)  # fmt: skip
"""Functions that are probed where each needs its own link; removing a link takes a tenth of a second."""

BY_NUMBER: Final = {function.number: function for function in FUNCTIONS}
_TWINS: Final = ("", "_ptsz")


def library_functions(library: str) -> dict[str, Function]:
    """Probed symbols of a kind of library (`cudart`, `cuda`, `nccl`) by exact name, per-thread twins included."""
    sources = {"cudart": (RUNTIME, GRAPH), "cuda": (DRIVER, GRAPH), "nccl": (NCCL,)}[library]
    prefix = {"cudart": "cuda", "cuda": "cu", "nccl": "nccl"}[library]
    chosen = [
        function
        for function in FUNCTIONS
        if function.source in sources
        and function.name.startswith(prefix)
        and function.name.startswith("cuda") == (library == "cudart")
    ]
    return {function.name + twin: function for function in chosen for twin in _TWINS}


SOURCE_NAMES: Final = {RUNTIME: "cuda", HOST: "host", DRIVER: "driver", GRAPH: "graph", NCCL: "nccl"}

OPERATION_NAMES: Final = {(function.source, function.operation): function.name for function in reversed(FUNCTIONS)}
"""Name of an operation: that of the first function that counts as it."""

COLLECTIVES: Final = frozenset(function.number for function in FUNCTIONS if function.kind == "coll")
"""Functions that take a communicator."""
