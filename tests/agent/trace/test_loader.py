"""Where the kernel's programs come from: shipped or compiled, and what loading them leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingero_agent.trace import kernel
from ingero_agent.trace.helper import LARGE_BYTES, large_files
from ingero_agent.trace.loader import CannotTrace, forget, load_programs
from ingero_agent.trace.probes.table import MAPS, PROGRAMS, SCHED_MAPS, SCHED_PROGRAMS
from ingero_testing.needs import needs_bcc

LOAD = """
import os, sys
from ingero_agent.trace import compiled, helper, prebuilt
{change}
loaded = helper.load_any("auto", 2**20, "multi")
print(loaded["origin"], len(loaded["descriptors"]), loaded["no_scheduler"], loaded.get("not_prebuilt"), sep="|")
sys.stdout.flush()
os._exit(0)
"""
REFUSE_SCHEDULER = """
load = prebuilt.load
prebuilt.load = lambda *given: compiled.refuse() if "on_switch" in given[2] else load(*given)
"""
NAMES = {name for pair in PROGRAMS.values() for name in pair if name} | set(MAPS)
SCHEDULER = {*SCHED_PROGRAMS, *SCHED_MAPS}


def load_with(change: str, *prefix: str) -> list[str]:
    """Origin, number of descriptors, why no scheduler, why not shipped; the helper's code runs in its own process."""
    done = subprocess.run(
        [*prefix, sys.executable, "-W", "ignore", "-c", LOAD.format(change=change)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split("|")


def cached(file: Path) -> int:
    done = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", file], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.ebpf(counts=False)
@pytest.mark.parametrize("mode", ["multi", "perf"])
@pytest.mark.parametrize("origin", ["auto", pytest.param("compiled", marks=needs_bcc)])
def test_every_program_and_map_is_loaded(origin: str, mode: str) -> None:
    loaded = load_programs(mode, origin)
    kernel.close_all(loaded.descriptors.values())

    assert loaded.origin == ("compiled" if origin == "compiled" else "prebuilt")
    assert (set(loaded.descriptors), loaded.no_scheduler) == (NAMES | SCHEDULER, "")


@pytest.mark.ebpf(counts=False)
def test_an_agent_in_another_pid_namespace_loads_the_object_that_reads_its_numbers() -> None:
    change = "prebuilt.object_file = lambda *a, f=prebuilt.object_file, **k: (print(f(*a, **k).name), f(*a, **k))[1]"

    assert ".namespace.o" in load_with(change, "unshare", "--pid", "--fork", "--mount-proc")[0]


@pytest.mark.ebpf(counts=False)
@pytest.mark.parametrize(
    ("arguments", "tracepoint"),
    [
        pytest.param((1, 2, None), "sched_process_exec", id="three"),
        pytest.param((2, 3, 1), "sched_switch", id="four"),
    ],
)
def test_the_switch_of_other_kernels_is_accepted_and_reads_no_argument_that_is_not_there(
    arguments: tuple[int, int, int | None], tracepoint: str
) -> None:
    change = f"""
from ingero_agent.trace import kernel
from ingero_agent.trace.btf import SwitchLayout
helper.switch_layout = lambda types: SwitchLayout(1264, 24, *{arguments})
load = prebuilt.load
def load_and_attach(*given):
    found = load(*given)
    kernel.link_tracepoint(found["on_switch"], "{tracepoint}")
    return found
prebuilt.load = load_and_attach
"""

    origin, _, no_scheduler, _ = load_with(change)

    assert (origin, no_scheduler) == ("prebuilt", "")


@pytest.mark.ebpf(counts=False)
def test_a_kernel_without_types_or_that_refuses_the_scheduler_counts_calls_all_the_same() -> None:
    untyped = load_with("helper.BTF = helper.Path('/nowhere')")
    refused = load_with(REFUSE_SCHEDULER)

    assert (untyped[0], int(untyped[1]), refused[0], int(refused[1])) == ("prebuilt", len(NAMES)) * 2
    assert "nowhere" in untyped[2] and "refuses" in refused[2]


@pytest.mark.ebpf(counts=False)
@pytest.mark.parametrize("prefix", [(), ("unshare", "--pid", "--fork", "--mount-proc")])
def test_this_kernel_accepts_the_programs_of_every_architecture(prefix: tuple[str, ...]) -> None:
    """Arguments of arm64 lie within the registers of x86-64 as well, so each kernel checks both."""
    for machine in ("x86_64", "aarch64"):
        assert load_with(f"prebuilt.platform.machine = lambda: {machine!r}", *prefix)[0] == "prebuilt"


@needs_bcc
@pytest.mark.ebpf(counts=False)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param("prebuilt.LIBRARY = 'libnone.so.1'", "libnone", id="no libbpf"),
        pytest.param("prebuilt.OBJECTS = prebuilt.OBJECTS / 'none'", "No such file", id="no object"),
        pytest.param(
            "prebuilt._Object.load = lambda self: self._call('bpf_object__load', None)", "bpf_object", id="refused"
        ),
    ],
)
def test_where_the_shipped_programs_cannot_be_used_bcc_compiles_them(change: str, why: str) -> None:
    origin, count, no_scheduler, not_prebuilt = load_with(change)

    assert (origin, int(count), no_scheduler) == ("compiled", len(NAMES | SCHEDULER), "")
    assert why in not_prebuilt


@pytest.mark.ebpf(counts=False)
def test_without_rights_nothing_is_compiled() -> None:
    change = "compiled.load = None; os.setgid(65534); os.setuid(65534)"
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(change=change)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip

    assert "PermissionError" in done.stderr.splitlines()[-1]


@pytest.mark.ebpf(counts=False)
def test_an_unknown_origin_is_said_in_words() -> None:
    with pytest.raises(CannotTrace, match="tracing needs root"):
        load_programs(origin="elsewhere")


def test_the_page_cache_of_files_that_nobody_maps_is_given_back(tmp_path: Path) -> None:
    file = tmp_path / "libLLVM.so"
    with file.open("wb") as stream:
        stream.write(bytes(LARGE_BYTES))
        stream.flush()
        subprocess.run(["sync", file], check=True, timeout=60)
    before = cached(file)
    forget([str(file), str(tmp_path / "gone")])
    if (
        before
        and cached(file) == before
        and subprocess.run(
            ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "tmpfs"
    ):
        pytest.skip("needs a temporary folder on a disk: TMPDIR=/var/tmp make test")

    assert (before, cached(file)) == (LARGE_BYTES, 0)


def test_large_files_are_those_that_are_mapped() -> None:
    assert all(Path(name).stat().st_size >= LARGE_BYTES for name in large_files())
    assert any("lib" in name for name in large_files())
