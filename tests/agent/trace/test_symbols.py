"""Names of functions at addresses of a process."""

import ctypes
import os
from pathlib import Path

import pytest

from ingero_agent.trace.elf import NotElf, function_names, function_offsets
from ingero_agent.trace.symbols import (
    Region,
    demangled,
    executable_regions,
    find_names,
    name_addresses,
    perf_map_names,
)
from ingero_testing.gpu_job import compile_c, job
from ingero_testing.needs import needs_compiler, needs_root
from ingero_testing.processes import wait_until

SOURCE = """
#include <stdio.h>
int ncclAllReduce(int n) { return n * 2; }
int pncclAllReduce(int n) __attribute__((alias("ncclAllReduce")));
static int hidden(int n) { __asm__(""); return n; }
int main(int argc, char **argv) { printf("%p\\n", (void *)main); fflush(stdout); getchar(); return hidden(argc); }
"""


@needs_compiler
def test_an_offset_is_named_by_the_public_one_of_two_names_and_only_inside_of_a_function(tmp_path: Path) -> None:
    data = compile_c(tmp_path, "program", SOURCE).read_bytes()
    (start,) = function_offsets(data, {"ncclAllReduce"}, static=True)["ncclAllReduce"]
    (other,) = function_offsets(data, {"main"}, static=True)["main"]

    assert function_names(data, [start, start + 1, other + 4, 0]) == {
        start: "ncclAllReduce", start + 1: "ncclAllReduce", other + 4: "main",
    }  # fmt: skip


@pytest.mark.parametrize("data", [b"", b"no library", b"\x7fELF\x02\x01" + b"\xff" * 100])
def test_a_file_that_is_no_library_names_nothing(data: bytes) -> None:
    with pytest.raises(NotElf):
        function_names(data, [0])


def test_regions_that_can_be_executed_are_read_with_spaces_in_names_and_without_a_name() -> None:
    maps = (
        "1000-2000 r--p 00000000 08:01 5 /usr/lib/libc.so.6\n"
        "2000-3000 r-xp 00001000 08:01 5    /usr/lib/my libc.so.6\n"
        "4000-5000 rwxp 00000000 00:00 0 \n"
    )

    assert executable_regions(maps) == [
        Region(0x2000, 0x3000, 0x1000, "/usr/lib/my libc.so.6"), Region(0x4000, 0x5000, 0, ""),
    ]  # fmt: skip


def test_an_interpreters_map_names_its_functions_and_its_broken_lines_nothing() -> None:
    text = "100 20 py::load:/job.py\nbroken\n200 10 py::step with spaces:/job.py\nx y z\n"

    assert perf_map_names(text, [0x0FF, 0x100, 0x11F, 0x120, 0x20A]) == {
        0x100: "py::load:/job.py", 0x11F: "py::load:/job.py", 0x20A: "py::step with spaces:/job.py",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "plain"),
    [("_ZN2at4_ops3addEii", "at::_ops::add(int, int)"), ("_Znonsense", "_Znonsense"), ("read", "read")],
)
def test_names_of_functions_in_cpp_are_written_as_in_cpp(name: str, plain: str) -> None:
    assert demangled(name) == plain


@needs_root
@needs_compiler
def test_a_process_in_a_file_that_was_deleted_is_named_and_an_address_in_no_file_is_unknown(tmp_path: Path) -> None:
    program = compile_c(tmp_path, "program", SOURCE)
    with job(program) as running:
        assert running.stdout
        address = int(running.stdout.readline(), 16)
        program.unlink()
        wait_until(lambda: not program.exists(), "the file to be gone")

        assert find_names(running.pid, [8, address, address + 1]) == ["unknown", "main", "main"]


@needs_root
def test_an_own_address_is_named_in_a_separate_process() -> None:
    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert address

    assert name_addresses(os.getpid(), [address]) == {address: "getpid"}


def test_a_process_that_has_ended_has_no_names() -> None:
    assert name_addresses(2**22 + 1, [1]) == {}
