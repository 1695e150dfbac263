"""Loads the kernel programs in a separate process, passes their file descriptors on, and ends.

`python -m ingero_agent.trace.helper FD MODE RING_BYTES ORIGIN` sends one JSON message over the unix socket FD. The
memory of libbpf, of the kernel's types and of a compiler is freed with the process.
"""

import functools
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ingero_agent.trace import compiled, prebuilt
from ingero_agent.trace.btf import NoTypes, Types, numbers_layout, switch_layout
from ingero_agent.trace.counts import VALUE_BYTES
from ingero_agent.trace.probes.table import MAPS, PROGRAMS, SCHED_MAPS, SCHED_PROGRAMS

UPROBE_MULTI: Final = 48
BTF: Final = Path("/sys/kernel/btf/vmlinux")
PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Number of the machine's first PID namespace, the same on every Linux."""

LARGE_BYTES: Final = 2**20
BUDGET_BYTES: Final = 16 * 2**20


def possible_cpus() -> int:
    """Processors that the kernel keeps per-CPU values for."""
    text = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return 1 + max(int(part.split("-")[-1]) for part in text.split(","))


def entries(cpus: int) -> int:
    """Entries of a per-CPU map: preallocated for every possible processor, so fewer on big machines."""
    return max(128, min(4096, BUDGET_BYTES // (VALUE_BYTES * cpus)))


@functools.cache
def kernel_types() -> Types:
    """Read the running kernel's types. Raises `NoTypes`."""
    try:
        return Types(BTF.read_bytes())
    except OSError as error:
        raise NoTypes(str(error)) from None


def kernel_values() -> tuple[dict[str, int], str]:
    """What the programs need of the running kernel, and why the scheduler cannot be watched, empty if it can.

    Raises `NoTypes` in a PID namespace other than the machine's first, where process numbers cannot be read without.
    """
    values, namespace = dict[str, int](), PID_NAMESPACE.stat().st_ino
    if namespace != FIRST_PID_NAMESPACE:
        values = {"pid_namespace": namespace, **asdict(numbers_layout(kernel_types()))}
    try:
        layout = asdict(switch_layout(kernel_types()))
        return {**values, **{name: value or 0 for name, value in layout.items()}}, ""
    except NoTypes as error:
        return values, str(error)


def load(origin: str, values: Mapping[str, int], refused: str, sizes: Mapping[str, int], mode: str) -> dict[str, Any]:
    """Load the programs, without the scheduler's where the kernel refuses these.

    `origin` is "prebuilt" or "compiled". Raises what its loader raises.
    """
    loader = {"prebuilt": prebuilt.load, "compiled": compiled.load}[origin]
    programs = list(dict.fromkeys(name for pair in PROGRAMS.values() for name in pair if name))
    kind = UPROBE_MULTI if mode == "multi" else 0
    if not refused:
        try:
            found = loader(values, sizes, [*programs, *SCHED_PROGRAMS], [*MAPS, *SCHED_MAPS], kind)
            return {"descriptors": found, "no_scheduler": "", "origin": origin}
        except Exception as error:
            refused = f"the kernel refuses the scheduler's programs: {error}"
    return {"descriptors": loader(values, sizes, programs, MAPS, kind), "no_scheduler": refused, "origin": origin}


def load_any(origin: str, ring_bytes: int, mode: str) -> dict[str, Any]:
    """Load the shipped programs or, where they cannot be used and BCC is installed, compile them.

    `origin` is "auto", or the only one to try.
    """
    values, refused = kernel_values()
    count = entries(possible_cpus())
    sizes = {"agg": count, "coll": count, "events": ring_bytes}
    if origin != "auto":
        return load(origin, values, refused, sizes, mode)
    try:
        return load("prebuilt", values, refused, sizes, mode)
    except prebuilt.NotPrebuilt as error:
        if not compiled.is_installed():
            raise
        return {**load("compiled", values, refused, sizes, mode), "not_prebuilt": str(error)}


def large_files() -> list[str]:
    """Large files that this process maps: the compiler's, which are in the page cache now."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = {line.split(None, 5)[5] for line in lines if "/" in line}
    return sorted(name for name in names if Path(name).is_file() and Path(name).stat().st_size >= LARGE_BYTES)


def main() -> None:
    """Load, send and exit at once. BCC's own clean-up is skipped, as it would fail."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    started = time.monotonic()
    try:
        message = load_any(sys.argv[4], int(sys.argv[3]), sys.argv[2])
        descriptors = message.pop("descriptors")
        message |= {"names": list(descriptors), "seconds": round(time.monotonic() - started, 3)}
        message["files"] = large_files() if message["origin"] == "compiled" else []
        socket.send_fds(channel, [json.dumps(message).encode()], list(descriptors.values()))
    except Exception as error:
        channel.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
