"""Where NCCL keeps a communicator's rank, read from machine code."""

import platform
import struct
from pathlib import Path

import pytest

from ingero_agent.trace.elf import function_offsets
from ingero_agent.trace.nccl_layout import ACCESSORS, accessor_codes, rank_offset
from ingero_testing.gpu_job import COLLECTIVES, compile_c, nvidia_libraries
from ingero_testing.needs import needs_compiler, needs_nvidia_libraries


def x86(offset: int) -> bytes:
    """push %rbp; mov %rsp,%rbp; mov offset(%rdi),%eax; mov %eax,(%rsi); ret"""
    return bytes.fromhex("55 4889e5 8b87") + struct.pack("<i", offset) + bytes.fromhex("8906 c3")


def arm(offset: int) -> bytes:
    """add x0,x0,#high,lsl #12; ldr w2,[x0,#low]; str w2,[x1]; ret"""
    high, low = offset >> 12, (offset & 0xFFF) // 4
    return struct.pack("<4I", 0x91400000 | high << 10, 0xB9400002 | low << 10, 0xB9000022, 0xD65F03C0)


def codes(make: object, rank: int, count: int, device: int) -> dict[str, bytes]:
    return {name: make(offset) for name, offset in zip(ACCESSORS, (rank, count, device), strict=True)}  # type: ignore[operator]


def test_a_store_through_r13_some_instructions_later_is_read() -> None:
    """mov offset(%r12),%eax; xor %ebx,%ebx; mov %eax,0(%r13)"""
    found = {
        name: bytes.fromhex("418b8424") + struct.pack("<i", 492728 + 4 * place) + bytes.fromhex("31db 41894500 c3")
        for place, name in enumerate(ACCESSORS)
    }

    assert rank_offset(found, "x86_64") == 492728


@pytest.mark.parametrize("offset", [9176, 13536, 492728, 1066192, 1181416])
@pytest.mark.parametrize(("make", "machine"), [(x86, "x86_64"), (arm, "aarch64")])
def test_offsets_of_known_versions_are_found(offset: int, make: object, machine: str) -> None:
    assert rank_offset(codes(make, offset, offset + 4, offset + 8), machine) == offset


@pytest.mark.parametrize(
    ("found", "machine"),
    [
        pytest.param(codes(x86, 9176, 9184, 9188), "x86_64", id="no neighbours"),
        pytest.param({"ncclCommUserRank": x86(9176)}, "x86_64", id="accessors missing"),
        pytest.param(codes(x86, 9176, 9180, 9184), "riscv64", id="foreign machine"),
        pytest.param(codes(x86, 4, 8, 12), "x86_64", id="no room for the hash"),
        pytest.param(dict.fromkeys(ACCESSORS, b"\x90" * 64), "x86_64", id="nothing there"),
        pytest.param(
            {
                "ncclCommUserRank": x86(9176) + x86(500),
                "ncclCommCount": x86(9180) + x86(504),
                "ncclCommCuDevice": x86(9184) + x86(508),
            },
            "x86_64", id="two answers",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_exactly_is_refused(found: dict[str, bytes], machine: str) -> None:
    assert rank_offset(found, machine) is None


@needs_compiler
@pytest.mark.parametrize("optimised", ["-O1", "-O2", "-O3"])
def test_compiled_accessors_are_read(optimised: str, tmp_path: Path) -> None:
    library = compile_c(tmp_path, "libnccl.so.2", COLLECTIVES, "-shared", "-fPIC", optimised, "-DHASH_AT=13528")
    data = library.read_bytes()
    offsets = function_offsets(data, set(ACCESSORS))

    found = accessor_codes(offsets, lambda size, at: data[at : at + size])

    assert rank_offset(found, platform.machine()) == 13536


REAL = nvidia_libraries()


@needs_nvidia_libraries
def test_the_real_library_is_read() -> None:
    assert REAL
    data = REAL[1].read_bytes()
    offsets = function_offsets(data, set(ACCESSORS))
    found = accessor_codes(offsets, lambda size, at: data[at : at + size])

    assert rank_offset(found, platform.machine()) in (9176, 13536, 492728, 1066192, 1181416)
