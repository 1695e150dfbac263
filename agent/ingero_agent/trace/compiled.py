"""Compiles the kernel programs with the distribution's BCC, where the shipped objects cannot be used."""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ingero_agent.trace.capabilities import kernel_version
from ingero_agent.trace.probes.table import NUMBERS, SCHED_PROGRAMS

PROBES: Final = Path(__file__).parent / "probes"
DIST_PACKAGES: Final = "/usr/lib/python3/dist-packages"
_CALLS: Final = (
    (r"bpf_map_lookup_elem\(&(\w+), ", r"\1.lookup("),
    (r"bpf_map_delete_elem\(&(\w+), ", r"\1.delete("),
    (r"bpf_map_update_elem\(&(\w+), ([^()]*), BPF_ANY\)", r"\1.update(\2)"),
    (r"bpf_map_update_elem\(&(\w+), ([^()]*), BPF_NOEXIST\)", r"\1.insert(\2)"),
    (r"bpf_ringbuf_output\(&(\w+), ", r"\1.ringbuf_output("),
)
"""How BCC writes the calls of the kernel that have a map."""


def is_installed() -> bool:
    """Whether the distribution's BCC is there."""
    return Path(DIST_PACKAGES, "bcc").is_dir()


def source(*, scheduler: bool) -> str:
    """The programs in BCC's dialect of C."""
    text = "".join((PROBES / name).read_text() for name in ("calls.bpf.c", *(("sched.bpf.c",) if scheduler else ())))
    for pattern, replacement in _CALLS:
        text = re.sub(pattern, replacement, text)
    return text


def compile_flags(values: Mapping[str, int], sizes: Mapping[str, int], page: int) -> list[str]:
    """Compiler flags: the running kernel's values, and the sizes of maps."""
    major, minor, patch = kernel_version(os.uname().release)
    return [
        "-DWITH_BCC",
        f"-DLINUX_VERSION_CODE={major * 65536 + minor * 256 + min(patch, 255)}",
        f"-DPAGE_SIZE={page}",
        f"-DAGG_ENTRIES={sizes['agg']}",
        f"-DCOLL_ENTRIES={sizes['coll']}",
        f"-DRING_PAGES={max(1, sizes['events'] // page)}",
        *(f"-D{name}={number}U" for name, number in NUMBERS.items()),
        *(f"-DVALUE_{name}={value}U" for name, value in values.items()),
        *(("-DIN_NAMESPACE",) if "pid_namespace" in values else ()),
        "-Wno-everything",
    ]


def load(
    values: Mapping[str, int],
    sizes: Mapping[str, int],
    programs: Iterable[str],
    maps: Iterable[str],
    attach_type: int,
) -> dict[str, int]:
    """Compile and load; returns descriptors by name.

    Imports BCC, which takes memory that only the end of the process gives back.
    """
    programs = list(programs)
    os.environ["BCC_KERNEL_SOURCE"] = str(PROBES)
    sys.path.append(DIST_PACKAGES)
    from bcc import BPF, libbcc

    text = source(scheduler=any(name in SCHED_PROGRAMS for name in programs))
    bpf = BPF(text=text, cflags=compile_flags(values, sizes, os.sysconf("SC_PAGE_SIZE")))
    found = {}
    for name in programs:
        if name in SCHED_PROGRAMS:
            found[name] = bpf.load_func(name, BPF.RAW_TRACEPOINT).fd
        else:
            found[name] = bpf.load_func(name, BPF.KPROBE, **({"attach_type": attach_type} if attach_type else {})).fd
    for name in maps:
        number = libbcc.lib.bpf_table_id(bpf.module, name.encode())
        found[name] = (
            int(libbcc.lib.bpf_table_fd2(bpf.module, number))
            if hasattr(libbcc.lib, "bpf_table_fd2")
            else int(libbcc.lib.bpf_table_fd(bpf.module, name.encode()))
        )
    return found
