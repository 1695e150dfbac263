"""The programs compile for arm64 and take a call's arguments from its registers."""

import os
import struct
import subprocess
import sys
from functools import cache

import pytest

from ingero_agent.trace.probes.table import PROGRAMS, SCHED_PROGRAMS

COMPILE = """
import os, sys
from ingero_agent.trace.btf import SwitchLayout
from ingero_agent.trace.helper import DIST_PACKAGES, PROBES, compile_flags, scheduler_flags
os.environ["BCC_KERNEL_SOURCE"] = str(PROBES)
sys.path.append(DIST_PACKAGES)
from bcc import BPF
flags = [flag for flag in compile_flags(2**20) if "PAGE" not in flag] + ["-DPAGE_SIZE=65536", "-DRING_PAGES=16"]
flags += scheduler_flags(SwitchLayout(1264, 24, 1, 2, None if "--stateless" in sys.argv else 3))
text = "".join((PROBES / name).read_text() for name in ("calls.bpf.c", "sched.bpf.c"))
program = BPF(text=text, cflags=flags)
for name in sys.argv[2:]:
    print(name, program.dump_func(name).hex())
sys.stdout.flush()
os._exit(0)
"""
LOAD_WORD, LOAD_DOUBLE = 0x61, 0x79


NAMES = sorted({name for pair in PROGRAMS.values() for name in pair if name} | set(SCHED_PROGRAMS))


@cache
def compiled(architecture: str, kernel: str = "--stateful") -> dict[str, bytes]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE, kernel, *NAMES],
        capture_output=True, text=True, env={**os.environ, "ARCH": architecture}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: bytes.fromhex(code) for name, code in (line.split() for line in done.stdout.splitlines())}


def loads(code: bytes, *kinds: int) -> set[int]:
    """Offsets that instructions of these kinds load from."""
    return {offset for kind, _, offset, _ in struct.iter_unpack("=BBhi", code) if kind in kinds}


@pytest.mark.ebpf
@pytest.mark.parametrize("kernel", ["--stateful", "--stateless"])
def test_all_programs_compile_for_arm64_with_large_pages(kernel: str) -> None:
    programs = compiled("arm64", kernel)

    assert sorted(programs) == NAMES
    assert all(code and len(code) % 8 == 0 for code in programs.values())


@pytest.mark.ebpf
def test_a_communicators_identity_is_a_pointer_in_a_register_on_arm64_and_on_the_stack_on_x86() -> None:
    arm, x86 = compiled("arm64")["init_enter"], compiled("x86")["init_enter"]
    stack_pointer = 8 * 19

    assert {8 * 2, 8 * 3} <= loads(arm, LOAD_WORD, LOAD_DOUBLE)
    assert stack_pointer not in loads(arm, LOAD_DOUBLE)
    assert stack_pointer in loads(x86, LOAD_DOUBLE)
