"""OTLP metric names of the health push, the trace exporter and Fleet."""

from typing import Final

HEALTH_SCORE: Final = "ingero.node.health_score"
"""Health of a node, 0 (dead) to 1 (as good as its own best). Instrument: gauge. Unit: 1."""

THROUGHPUT_RATE: Final = "ingero.node.throughput_rate"
"""Absolute work rate, operations or steps a second. Peers can be compared by it before they have a baseline.

Instrument: gauge. Unit: 1/s.
"""

DEGRADATION_WARNING: Final = "ingero.node.degradation_warning"
"""1 while any signal's fast baseline is below half of its slow one. Instrument: gauge. Unit: 1."""

DETECTION_MODE: Final = "ingero.agent.detection_mode"
"""Always 1; the mode is the point's attribute. Instrument: gauge. Unit: 1."""

FLEET_REACHABLE: Final = "ingero.agent.fleet_reachable"
"""1 unless the last three pushes failed. Instrument: gauge. Unit: 1."""

NODE_INFO: Final = "ingero.node.info"
"""Always 1; GPU model and count are the point's attributes. Instrument: gauge. Unit: 1."""

WORLD_SIZE_GAUGE: Final = "ingero.node.world_size"
"""Ranks of the job, 0 when not distributed. Instrument: gauge. Unit: 1."""

LAUNCHES_TOTAL: Final = "ingero.node.cuda_kernel_launch_total"
"""Kernel and graph launches. Instrument: cumulative monotonic sum. Unit: 1."""

CPU_STALL_TOTAL: Final = "ingero.node.cpu_stall_nanos_total"
"""Time runnable but not running. Instrument: cumulative monotonic sum. Unit: ns."""

MEMCPY_BYTES_TOTAL: Final = "ingero.node.cuda_memcpy_bytes_total"
"""Bytes copied, by direction. Instrument: cumulative monotonic sum. Unit: By."""

STRAGGLER_EVENT: Final = "ingero.node.straggler_event"
"""1 on every tick while the node calls itself a straggler, 0 once on recovery. Instrument: gauge. Unit: 1."""

COLLECTIVE_DURATION: Final = "nccl.collective.duration_ms"
"""Host time inside the collective's call. Instrument: gauge per event. Unit: ms."""

COLLECTIVE_BYTES: Final = "nccl.collective.bytes"
"""Element count times element size. Instrument: gauge per event. Unit: By."""

COLLECTIVE_BARRIER_WAIT: Final = "nccl.collective.barrier_wait_ms"
"""Time blocked waiting for the peers of a collective. Instrument: gauge per event. Unit: ms."""

INSPECTOR_EXEC_TIME: Final = "nccl_collective_exec_time_microseconds"
"""Time of a collective's kernels, from NCCL Inspector's OTLP export. Instrument: gauge per event. Unit: us."""

INSPECTOR_BANDWIDTH: Final = "nccl_collective_algobw_gbs"
"""Bytes of a collective over its time, from NCCL Inspector's OTLP export. Instrument: gauge per event. Unit: GB/s."""

COLLECTIVE_PEER_LAG: Final = "nccl.collective.peer_lag_ms"
"""How much later than the median rank this rank arrived; computed by Fleet. Instrument: gauge. Unit: ms."""

GPU_THROTTLE_POWER: Final = "gpu.throttle.power_active"
"""1 while a GPU is throttled by power: software cap or hardware brake. Instrument: gauge. Unit: 1."""

GPU_THROTTLE_THERMAL: Final = "gpu.throttle.thermal_active"
"""1 while a GPU is throttled by heat. Instrument: gauge. Unit: 1."""

GPU_THROTTLE_SW: Final = "gpu.throttle.sw_active"
"""1 while software throttles a GPU: cap, heat, set clocks, sync boost. Instrument: gauge. Unit: 1."""

GPU_THROTTLE_HW: Final = "gpu.throttle.hw_active"
"""1 while hardware throttles a GPU: heat, brake, slowdown, or a reason not known. Instrument: gauge. Unit: 1."""

GPU_MEMORY_USED: Final = "gpu.memory.used"
"""Memory of a GPU in use. Instrument: gauge. Unit: By."""

GPU_MEMORY_FREE: Final = "gpu.memory.free"
"""Memory of a GPU that is free. Instrument: gauge. Unit: By."""

GPU_MEMORY_TOTAL: Final = "gpu.memory.total"
"""Total memory of a GPU. Instrument: gauge. Unit: By."""

GPU_MEMORY_FRAGMENTATION: Final = "gpu.memory.fragmentation_estimate"
"""Share of a GPU's memory that is neither used nor free, 0 to 1. Instrument: gauge. Unit: 1."""

GPU_MEMORY_PROCESS: Final = "gpu.memory.process.allocated_bytes"
"""Memory of a GPU that a process holds. Instrument: gauge. Unit: By."""

GPU_CLOCK_SM: Final = "gpu.clock.sm"
"""Clock of a GPU's processors. Instrument: gauge. Unit: Hz."""

SYSTEM_CPU: Final = "system.cpu.utilization"
"""Busy share of the host's processors. Instrument: gauge. Unit: 1."""

SYSTEM_MEMORY: Final = "system.memory.utilization"
"""Share of the host's memory in use. Instrument: gauge. Unit: 1."""

SYSTEM_MEMORY_AVAILABLE: Final = "system.memory.usage.available"
"""Memory that is available without swapping. Instrument: gauge. Unit: By."""

SYSTEM_LOAD: Final = "system.cpu.load_average.1m"
"""Load average of the last minute. Instrument: gauge. Unit: 1."""

OPERATION_DURATION: Final = "gpu.cuda.operation.duration"
"""Duration of calls since the start, by percentile. Instrument: gauge. Unit: us."""

OPERATION_COUNT: Final = "gpu.cuda.operation.count"
"""Calls. Instrument: cumulative monotonic sum. Unit: {event}."""

GPU_MEMCPY_BYTES: Final = "gpu.memcpy.bytes_total"
"""Bytes copied, by direction. Instrument: cumulative monotonic sum. Unit: By."""

GPU_MEMCPY_DURATION: Final = "gpu.memcpy.duration_ms"
"""Host time of copies, by direction. Instrument: cumulative histogram. Unit: ms."""

NCCL_PROCESS_LOADED: Final = "gpu.nccl.process_loaded"
"""1 for every process that has NCCL loaded. Instrument: gauge. Unit: 1."""

NCCL_PROCESSES: Final = "gpu.nccl.processes_total"
"""Processes that have NCCL loaded. Instrument: gauge. Unit: 1."""

STRAGGLER_COST: Final = "ingero.fleet.straggler_cost"
"""Cost of waiting for a node since Fleet started; sent by Fleet. The nodes of a job add up to all of its waiting.

Instrument: cumulative monotonic sum. Unit: the currency.
"""

TRACE_BUDGET: Final = "ingero.trace.budget"
"""Share of one processor that tracing may cost a process. Instrument: gauge. Unit: 1."""

TRACE_OVERHEAD: Final = "ingero.trace.overhead"
"""Share of one processor that tracing costs the most traced process. Instrument: gauge. Unit: 1."""

TRACE_DUTY: Final = "ingero.trace.duty"
"""Share of the time in which a group of functions is counted. Instrument: gauge. Unit: 1."""

TAINT_EVENT: Final = "ingero.taint"
"""Event name of the OTLP log record that the operator sends for every taint that it sets, changes or removes."""

NETWORK_EVENT: Final = "ingero.network"
"""Event name of the OTLP log record that Fleet exports whenever another part of a cluster's network is slow, or none
is any more."""

VERDICT_EVENT: Final = "ingero.verdict"
"""Event name of the OTLP log record that Fleet exports whenever a node is accused, begins to recover, relapses or
is cleared."""

HANG_EVENT: Final = "ingero.hang"
"""Event name of the OTLP log record that an agent sends whenever NCCL RAS has answered: the job hangs, or goes on."""
