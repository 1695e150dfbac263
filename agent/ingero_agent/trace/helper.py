"""Compiles and loads the kernel programs in a separate process, passes their file descriptors on, and ends.

`python -m ingero_agent.trace.helper FD MODE RING_BYTES` sends one JSON message over the unix socket FD. The
compiler's memory is freed with the process, and the agent never imports the distribution's Python packages.
"""

import functools
import json
import os
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ingero_agent.trace.btf import NoTypes, NumbersLayout, SwitchLayout, Types, numbers_layout, switch_layout
from ingero_agent.trace.capabilities import kernel_version
from ingero_agent.trace.counts import VALUE_BYTES
from ingero_agent.trace.probes.table import (
    DISK_WAIT,
    ELEMENT_SHIFTS,
    ELEMENT_SIZES,
    PROGRAMS,
    SCHED_PROGRAMS,
    SCHED_SWITCH,
)

PROBES: Final = Path(__file__).parent / "probes"
DIST_PACKAGES: Final = "/usr/lib/python3/dist-packages"
UPROBE_MULTI: Final = 48
MAPS: Final = (
    "config", "rank_offset", "lost", "agg", "coll", "start", "comms", "group", "last_coll", "device", "events",
)  # fmt: skip
SCHED_MAPS: Final = ("tracked", "off", "pushed")
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


def compile_flags(ring_bytes: int) -> list[str]:
    """Compiler flags that depend on the running machine."""
    major, minor, patch = kernel_version(os.uname().release)
    page = os.sysconf("SC_PAGE_SIZE")
    count = entries(possible_cpus())
    return [
        f"-DLINUX_VERSION_CODE={major * 65536 + minor * 256 + min(patch, 255)}",
        f"-DPAGE_SIZE={page}",
        f"-DAGG_ENTRIES={count}",
        f"-DCOLL_ENTRIES={count}",
        f"-DDATA_TYPES={len(ELEMENT_SIZES)}",
        f"-DELEMENT_SHIFTS={ELEMENT_SHIFTS}U",
        f"-DRING_PAGES={max(1, ring_bytes // page)}",
        "-Wno-everything",
    ]


def scheduler_flags(layout: SwitchLayout) -> list[str]:
    """Compiler flags of the scheduler's programs, which depend on the running kernel."""
    flags = {**asdict(layout), "sched_switch": SCHED_SWITCH.number, "disk_wait": DISK_WAIT.number}
    return [f"-D{name.upper()}={value}" for name, value in flags.items() if value is not None]


def numbers_flags(namespace: int, layout: NumbersLayout) -> list[str]:
    """Compiler flags to read process numbers in a PID namespace other than the machine's first."""
    flags = {"pid_namespace": namespace, **asdict(layout)}
    return [f"-D{name.upper()}={value}U" for name, value in flags.items()]


@functools.cache
def kernel_types() -> Types:
    """Read the running kernel's types. Raises `NoTypes`."""
    try:
        return Types(BTF.read_bytes())
    except OSError as error:
        raise NoTypes(str(error)) from None


def compile_and_load(mode: str, ring_bytes: int) -> tuple[dict[str, Any], list[int]]:
    """Compile and load; returns the message and the descriptors that it names, in order."""
    os.environ["BCC_KERNEL_SOURCE"] = str(PROBES)
    sys.path.append(DIST_PACKAGES)
    from bcc import BPF, libbcc

    started = time.monotonic()
    text, flags, refused = (PROBES / "calls.bpf.c").read_text(), compile_flags(ring_bytes), ""
    namespace = PID_NAMESPACE.stat().st_ino
    if namespace != FIRST_PID_NAMESPACE:
        flags += numbers_flags(namespace, numbers_layout(kernel_types()))
    try:
        flags += scheduler_flags(switch_layout(kernel_types()))
        text += (PROBES / "sched.bpf.c").read_text()
    except NoTypes as error:
        refused = str(error)
    bpf = BPF(text=text, cflags=flags)
    names = list(dict.fromkeys(name for pair in PROGRAMS.values() for name in pair if name))
    kind = {"attach_type": UPROBE_MULTI} if mode == "multi" else {}
    programs = [bpf.load_func(name, BPF.KPROBE, **kind).fd for name in names]
    if not refused:
        try:
            programs += [bpf.load_func(name, BPF.RAW_TRACEPOINT).fd for name in SCHED_PROGRAMS]
            names += SCHED_PROGRAMS
        except Exception as error:
            refused = f"the kernel refuses the scheduler's programs: {error}"
    module = bpf.module
    maps = {}
    for name in (*MAPS, *(() if refused else SCHED_MAPS)):
        number = libbcc.lib.bpf_table_id(module, name.encode())
        maps[name] = (
            int(libbcc.lib.bpf_table_fd2(module, number))
            if hasattr(libbcc.lib, "bpf_table_fd2")
            else int(libbcc.lib.bpf_table_fd(module, name.encode()))
        )
    message = {"programs": names, "maps": list(maps), "seconds": round(time.monotonic() - started, 3),
               "no_scheduler": refused}  # fmt: skip
    return message, [*programs, *maps.values()]


def large_files() -> list[str]:
    """Large files that this process maps: the compiler's, which are in the page cache now."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = {line.split(None, 5)[5] for line in lines if "/" in line}
    return sorted(name for name in names if Path(name).is_file() and Path(name).stat().st_size >= LARGE_BYTES)


def main() -> None:
    """Load, send and exit at once. The library's own clean-up is skipped, as it would fail."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        message, descriptors = compile_and_load(sys.argv[2], int(sys.argv[3]))
        message["files"] = large_files()
        socket.send_fds(channel, [json.dumps(message).encode()], descriptors)
    except Exception as error:
        channel.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
