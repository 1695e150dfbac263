"""Collects the facts for `ingero-agent check` by trying everything, without changes to the machine."""

import importlib.util
import os
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ingero_agent.nvml import find_reader
from ingero_agent.trace import compiled, kernel, prebuilt
from ingero_agent.trace.calibrate import SCRATCH_NUMBER, Twins, calibrate, nanoseconds
from ingero_agent.trace.capabilities import Facts
from ingero_agent.trace.counts import VALUE_BYTES
from ingero_agent.trace.discovery import LOOK_INTO, LibraryFinder, mapped_files_error
from ingero_agent.trace.helper import possible_cpus
from ingero_agent.trace.host import command_of, own_capabilities
from ingero_agent.trace.loader import ADVICE, CannotTrace, load_programs
from ingero_agent.trace.scheduler import EbpfSchedulerMonitor
from ingero_agent.trace.seccomp import try_returns


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _libraries() -> tuple[tuple[tuple[str, str], ...], int]:
    finder = LibraryFinder()
    found = {(one.kind, command_of(one.pid)): None for libraries in finder.find().values() for one in libraries}
    return tuple(found), finder.refused.get(LOOK_INTO, 0)


def _writable(file: Path) -> str:
    folder = next((parent for parent in file.absolute().parents if parent.exists()), Path("/"))
    if file.exists():
        return "" if os.access(file, os.W_OK) else f"{file} cannot be written"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def _fires(descriptors: dict[str, int]) -> None:
    """Attach to a function of this process, call it, and verify that the calls are counted. Raises `OSError`."""
    twins, calls = Twins(), 10
    try:
        with kernel.attached([descriptors["launch_enter"]], twins.path, {0: SCRATCH_NUMBER}, pid=os.getpid()):
            for _ in range(calls):
                twins.probed()
    finally:
        twins.close()
    cpus = possible_cpus()
    value = kernel.Map(descriptors["agg"], 8, VALUE_BYTES, cpus).get(
        struct.pack("=IHH", os.getpid(), SCRATCH_NUMBER, 0)
    )
    counted = sum(
        struct.unpack_from("=Q", value or b"\0" * VALUE_BYTES * cpus, VALUE_BYTES * cpu)[0] for cpu in range(cpus)
    )
    if counted != calls:
        raise OSError(f"{calls} calls were counted as {counted}")


def _not_prebuilt() -> str:
    """Why the shipped programs cannot be opened here; empty if they can."""
    try:
        prebuilt.open_library()
    except prebuilt.NotPrebuilt as error:
        return str(error)
    file = prebuilt.object_file(os.uname().machine, in_namespace=False)
    return "" if file.exists() else f"{file} is missing"


def machine_facts() -> Facts:
    """What is known without trying to load a program. Takes a millisecond."""
    return Facts(
        release=os.uname().release, machine=os.uname().machine, effective=own_capabilities(),
        mapped_files_error=mapped_files_error(), btf=os.access("/sys/kernel/btf/vmlinux", os.R_OK),
        lockdown=_text("/sys/kernel/security/lockdown"), bcc=compiled.is_installed(),
        not_prebuilt=_not_prebuilt(),
        perf_uprobes=Path("/sys/bus/event_source/devices/uprobe/type").exists(),
    )  # fmt: skip


def collect_facts(database: Path) -> Facts:
    """Collect everything that `evaluate` needs."""
    libraries, unreadable = _libraries()
    gpus = find_reader()
    known = replace(
        machine_facts(),
        libraries=libraries, unreadable_processes=unreadable,
        gpus=0 if isinstance(gpus, str) else gpus.count, gpu_error=gpus if isinstance(gpus, str) else "",
        pyarrow=importlib.util.find_spec("pyarrow") is not None,
        database=str(database), database_error=_writable(database),
    )  # fmt: skip
    try:
        loaded = load_programs()
    except (CannotTrace, OSError) as error:
        return replace(known, load_error=str(error).split(ADVICE)[0])
    link_error, costs, no_returns = "", None, ""
    programs = loaded.descriptors
    scheduler = EbpfSchedulerMonitor(programs, loaded.no_scheduler)
    scheduler.close()
    try:
        _fires(programs)
        with suppress(OSError):
            costs = nanoseconds(calibrate(programs))
        no_returns = try_returns(programs["call_enter"], programs["call_return"])
    except OSError as error:
        link_error = str(error)
    finally:
        kernel.close_all(programs.values())
    return replace(
        known, no_scheduler=scheduler.why_not, origin=loaded.origin, load_seconds=loaded.seconds,
        helper_peak_bytes=loaded.peak_bytes,
        no_returns=no_returns, link_error=link_error, costs=costs,
    )  # fmt: skip
