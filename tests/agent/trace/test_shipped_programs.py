"""The shipped programs are those of the sources, and read the registers of their architecture."""

import ctypes
import os
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ingero_agent.trace.compiled import DIST_PACKAGES, PROBES
from ingero_agent.trace.prebuilt import OBJECTS, object_file, open_library
from ingero_agent.trace.probes.table import PROGRAMS, SCHED_PROGRAMS
from ingero_testing.needs import needs_bcc
from scripts import probes

COMPILE = f"""
import os, sys
from ingero_agent.trace.compiled import compile_flags, source
os.environ["BCC_KERNEL_SOURCE"] = {str(PROBES)!r}
sys.path.append({DIST_PACKAGES!r})
from bcc import BPF
values = dict(pid_offset=1264, state_offset=24, prev_argument=1, next_argument=2, state_argument=3)
flags = compile_flags(values, dict(agg=4096, coll=4096, events=2**20), 65536)
program = BPF(text=source(scheduler=True), cflags=flags)
for name in sys.argv[1:]:
    print(name, program.dump_func(name).hex())
sys.stdout.flush()
os._exit(0)
"""
LOAD_WORD, LOAD_DOUBLE = 0x61, 0x79
STACK_POINTER = 8 * 19
NAMES = sorted({name for pair in PROGRAMS.values() for name in pair if name} | set(SCHED_PROGRAMS))


@cache
def shipped(machine: str, *, in_namespace: bool = False) -> dict[str, bytes]:
    """Instructions of every shipped program."""
    library, code = open_library(), object_file(machine, in_namespace=in_namespace).read_bytes()
    library.bpf_program__insns.restype = library.bpf_program__name.restype = ctypes.c_void_p
    opened = ctypes.c_void_p(library.bpf_object__open_mem(code, ctypes.c_size_t(len(code)), None))
    found, program = {}, library.bpf_object__next_program(opened, None)
    while program:
        handle = ctypes.c_void_p(program)
        count = library.bpf_program__insn_cnt(handle)
        name = ctypes.string_at(library.bpf_program__name(handle)).decode()
        found[name] = ctypes.string_at(library.bpf_program__insns(handle), 8 * count)
        program = library.bpf_object__next_program(opened, handle)
    return found


@cache
def compiled(architecture: str) -> dict[str, bytes]:
    """Instructions of every program as BCC compiles it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE, *NAMES],
        capture_output=True, text=True, env={**os.environ, "ARCH": architecture}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: bytes.fromhex(code) for name, code in (line.split() for line in done.stdout.splitlines())}


def loads(code: bytes, *kinds: int) -> set[int]:
    """Offsets that instructions of these kinds load from."""
    return {offset for kind, _, offset, _ in struct.iter_unpack("=BBhi", code) if kind in kinds}


def test_the_objects_were_made_from_the_sources_as_they_are() -> None:
    assert (OBJECTS / probes.SOURCES).read_text().strip() == probes.sources_hash(), "run make probes"


@pytest.mark.skipif(not probes.is_possible(), reason=probes.NEEDS)
def test_the_same_sources_give_the_same_objects_in_any_folder(tmp_path: Path) -> None:
    probes.build(tmp_path)

    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        file.name: file.read_bytes() for file in OBJECTS.iterdir()
    }


@pytest.mark.ebpf(counts=False)
@pytest.mark.parametrize("in_namespace", [False, True])
@pytest.mark.parametrize("machine", probes.ARCHITECTURES)
def test_every_program_is_shipped_for_every_architecture(machine: str, in_namespace: bool) -> None:
    assert sorted(shipped(machine, in_namespace=in_namespace)) == NAMES


@needs_bcc
@pytest.mark.ebpf(counts=False)
def test_all_programs_compile_for_arm64_with_large_pages() -> None:
    programs = compiled("arm64")

    assert sorted(programs) == NAMES
    assert all(code and len(code) % 8 == 0 for code in programs.values())


@pytest.mark.ebpf(counts=False)
@pytest.mark.parametrize("made", [shipped, pytest.param(compiled, marks=needs_bcc)])
def test_a_communicators_identity_is_a_pointer_in_a_register_on_arm64_and_on_the_stack_on_x86(made: object) -> None:
    arm = shipped("aarch64") if made is shipped else compiled("arm64")
    x86 = shipped("x86_64") if made is shipped else compiled("x86")

    assert {8 * 2, 8 * 3} <= loads(arm["init_enter"], LOAD_WORD, LOAD_DOUBLE)
    assert STACK_POINTER not in loads(arm["init_enter"], LOAD_DOUBLE)
    assert STACK_POINTER in loads(x86["init_enter"], LOAD_DOUBLE)
