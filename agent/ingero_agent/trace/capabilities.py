"""Evaluates what this machine supports: each capability with its state, the reason, and the remedy. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ingero_agent.trace.governor import COLLECTIVE, ENTRY, PAIR, WAIT

PRIVILEGES: Final = {"CAP_BPF": 39, "CAP_PERFMON": 38, "CAP_SYS_PTRACE": 19, "CAP_CHECKPOINT_RESTORE": 40}
"""Kernel capabilities that tracing needs, by bit."""

_CAP_SYS_ADMIN: Final = 21
_OF_SYS_ADMIN: Final = ("CAP_BPF", "CAP_PERFMON", "CAP_CHECKPOINT_RESTORE")
"""Capabilities that CAP_SYS_ADMIN includes."""

OLDEST_KERNEL: Final = (6, 6)
"""First kernel with links of many functions (uprobe_multi)."""

OLDEST_BTF_KERNEL: Final = (5, 15)


class Support(StrEnum):
    """`degraded` works with less; `missing` does not work; `absent` is not there and is not needed."""

    OK = "ok"
    DEGRADED = "degraded"
    MISSING = "missing"
    ABSENT = "absent"


@dataclass(frozen=True)
class Capability:
    """One line of the answer. `needed`: without it nothing is traced."""

    name: str
    state: Support
    reason: str
    fix: str = ""
    needed: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the machine. Error texts are empty where there was no error."""

    release: str = ""
    machine: str = "x86_64"
    effective: int = 0
    mapped_files_error: str = ""
    btf: bool = False
    lockdown: str = ""
    not_prebuilt: str = ""
    bcc: bool = False
    origin: str = "prebuilt"
    load_error: str = ""
    load_seconds: float = 0.0
    helper_peak_bytes: int = 0
    no_scheduler: str = ""
    no_returns: str = ""
    link_error: str = ""
    perf_uprobes: bool = False
    costs: Mapping[str, float] | None = None
    libraries: tuple[tuple[str, str], ...] = ()
    unreadable_processes: int = 0
    gpu_error: str = ""
    gpus: int = 0
    pyarrow: bool = False
    database: str = ""
    database_error: str = ""


def kernel_version(release: str) -> tuple[int, int, int]:
    """Major, minor and patch version from `uname -r`; zeros for parts that are not numbers."""
    parts = (int("".join(filter(str.isdigit, part)) or 0) for part in release.split("-")[0].split("."))
    major, minor, patch = [*parts, 0, 0, 0][:3]
    return major, minor, patch


def missing_privileges(effective: int) -> list[str]:
    """Names of the needed kernel capabilities that the process lacks."""
    implied = _OF_SYS_ADMIN if effective >> _CAP_SYS_ADMIN & 1 else ()
    return [name for name, bit in PRIVILEGES.items() if not effective >> bit & 1 and name not in implied]


def no_mapped_files(error: str, effective: int) -> tuple[str, str]:
    """The reason, and the remedy, when files that processes map cannot be opened, so that nothing can be traced."""
    missing = missing_privileges(effective)
    held = f"{', '.join(missing)} not held" if missing else "CAP_CHECKPOINT_RESTORE counts in a user namespace only"
    return f"no library can be seen: files that processes map cannot be opened ({error}; {held})", _cure(missing)


def _cure(missing: list[str]) -> str:
    if not missing:
        return "run outside of a user namespace (in a pod, without hostUsers: false)"
    wanted = ", ".join(name.removeprefix("CAP_") for name in missing)
    return f"run as root, or give the container securityContext.capabilities.add: [{wanted}]"


def evaluate(facts: Facts) -> list[Capability]:
    """All capabilities, those that the others depend on first."""
    return [
        _kernel(facts),
        _check(
            "btf", "" if facts.btf else "/sys/kernel/btf/vmlinux is not there or cannot be read",
            "use a distribution's kernel (CONFIG_DEBUG_INFO_BTF), and mount /sys into the container",
            "/sys/kernel/btf/vmlinux can be read", Support.DEGRADED,
        ),
        _check(
            "lockdown",
            "the kernel is locked down for confidentiality: eBPF may read nothing"
            if "[confidentiality]" in facts.lockdown else "",
            "boot without lockdown=confidentiality; integrity is fine",
            facts.lockdown.strip() or "no lockdown", needed=True,
        ),
        *_privileges(facts),
        _loader(facts),
        _programs(facts),
        *_probes(facts),
        _cost(facts.costs),
        _libraries(facts),
        _check(
            "gpu", facts.gpu_error, "on a GPU node, mount the driver's libnvidia-ml.so.1 into the container",
            f"{facts.gpus} GPUs through NVML", Support.ABSENT,
        ),
        _check(
            "database", facts.database_error, "choose a folder that can be written with --db",
            f"{facts.database} can be written", needed=True,
        ),
        _check(
            "parquet", "" if facts.pyarrow else "--record writes CSV only", "pip install pyarrow",
            "--record writes CSV and Parquet", Support.ABSENT,
        ),
    ]  # fmt: skip


def can_trace(found: list[Capability]) -> bool:
    """Whether everything that is needed works."""
    return not [one for one in found if one.needed and one.state is Support.MISSING]


def _check(
    name: str, problem: str, fix: str, reason: str, otherwise: Support = Support.MISSING, *, needed: bool = False
) -> Capability:
    """`reason` is given when there is no problem; otherwise the state is `otherwise`."""
    if problem:
        return Capability(name, otherwise, problem, fix, needed)
    return Capability(name, Support.OK, reason, needed=needed)


def _kernel(facts: Facts) -> Capability:
    version, text = kernel_version(facts.release), f"Linux {facts.release} on {facts.machine}"
    if facts.machine not in ("x86_64", "aarch64"):
        return Capability("kernel", Support.MISSING, text, "run on x86_64 or aarch64", True)
    if version < OLDEST_BTF_KERNEL:
        return Capability("kernel", Support.MISSING, text, "Linux 5.15 or newer, better 6.6", True)
    old = f"{text}: no links of many functions" if version < OLDEST_KERNEL else ""
    return _check("kernel", old, "Linux 6.6 or newer", text, Support.DEGRADED, needed=True)


def _privileges(facts: Facts) -> tuple[Capability, Capability]:
    """The process's capabilities, and whether files that processes map can be opened with them."""
    missing = missing_privileges(facts.effective)
    state = Support.MISSING if set(missing) - {"CAP_SYS_PTRACE"} else Support.DEGRADED
    unopened, cure = (
        no_mapped_files(facts.mapped_files_error, facts.effective) if facts.mapped_files_error else ("", "")
    )
    return (
        _check(
            "privileges", f"{', '.join(missing)} not held" if missing else "", _cure(missing), ", ".join(PRIVILEGES),
            state, needed=True,
        ),
        _check("files", unopened, cure, "the files that processes map can be opened", needed=True),
    )  # fmt: skip


def _loader(facts: Facts) -> Capability:
    """What loads the programs: libbpf, or BCC, which compiles them."""
    problem, state = facts.not_prebuilt, Support.DEGRADED if facts.bcc else Support.MISSING
    if problem:
        problem += (
            "; python3-bpfcc compiles them" if facts.bcc else "; python3-bpfcc, which compiles, is not there either"
        )
    return _check(
        "loader", problem, "apt-get install libbpf1", "libbpf loads the shipped programs", state, needed=True
    )


def _programs(facts: Facts) -> Capability:
    made = "as shipped, loaded" if facts.origin == "prebuilt" else "compiled with BCC and loaded"
    text = f"{made} in {facts.load_seconds:.1f} s; helper's peak {facts.helper_peak_bytes >> 20} MB"
    slow = "" if facts.origin == "prebuilt" else text
    return _check(
        "programs", facts.load_error or slow, "provide what is missing above", text,
        Support.MISSING if facts.load_error else Support.DEGRADED, needed=True,
    )  # fmt: skip


def _probes(facts: Facts) -> tuple[Capability, Capability, Capability]:
    """Links of many functions, return probes, and the scheduler's tracepoints."""
    if facts.load_error:
        names = ("links", "returns", "scheduler")
        links, returns, scheduler = (
            Capability(name, Support.MISSING, "not tried: no programs", needed=name == "links") for name in names
        )
        return links, returns, scheduler
    fix, problem, state = "Linux 6.6 or newer with CONFIG_UPROBES", facts.link_error, Support.MISSING
    if problem and facts.perf_uprobes:
        fix, state = "Linux 6.6 or newer", Support.DEGRADED
        problem += ": one link a function, and only the most important ones"
    return (
        _check(
            "links", problem, fix, "a probe attached to many functions at once fires and counts", state, needed=True
        ),
        Capability("returns", Support.MISSING, "not tried: no links of many functions")
        if problem
        else _check(
            "returns",
            facts.no_returns and f"{facts.no_returns}: calls are counted, not timed, and no wait is seen",
            "a kernel in which return probes need no system call, or one that filters know (Linux 6.14 or newer)",
            "a process under a filter of system calls (seccomp) survives being timed", Support.DEGRADED,
        ),
        _check(
            "scheduler", facts.no_scheduler and f"{facts.no_scheduler}: waiting for processors is not counted",
            "a kernel with BTF (CONFIG_DEBUG_INFO_BTF) that allows raw tracepoints",
            "waiting for processors and disks is distinguished from sleep", Support.DEGRADED,
        ),
    )  # fmt: skip


def _cost(costs: Mapping[str, float] | None) -> Capability:
    if costs is None:
        return Capability("cost", Support.DEGRADED, "not measured: costs are assumed")
    text = (
        f"{costs[ENTRY]:.0f} ns a counted call, {costs[PAIR]:.0f} ns a timed one, "
        f"{costs[f'{COLLECTIVE}_cold'] + costs[f'{WAIT}_cold']:.0f} ns a collective and its wait after a pause"
    )
    expensive = text if costs[PAIR] > 8000 else ""
    fix = "probes are expensive here: more is counted in windows of time only"
    return _check("cost", expensive, fix, text, Support.DEGRADED)


def _libraries(facts: Facts) -> Capability:
    count = facts.unreadable_processes
    allowed = "CAP_SYS_PTRACE" not in missing_privileges(facts.effective)
    hidden = f"; {count} {'process' if count == 1 else 'processes'} cannot be read" if count else ""
    if hidden and allowed:
        hidden += " (of another user namespace, or protected by a security module)"
    fix = "start a workload; in a container, set hostPID: true"
    if hidden and not allowed:
        fix = _cure(["CAP_SYS_PTRACE"])
    found = ", ".join(f"{kind} of {name}" for kind, name in facts.libraries[:8])
    absent = "" if found else f"no process uses CUDA or NCCL now{hidden}"
    return _check("libraries", absent, fix, found + hidden, Support.ABSENT)
