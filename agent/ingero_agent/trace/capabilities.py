"""Evaluates what this machine supports: each capability with its state, the reason, and the remedy. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "state": str(self.state)}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the machine. Error texts are empty where there was no error."""

    release: str = ""
    machine: str = "x86_64"
    effective: int = 0
    mapped_files_error: str = ""
    btf: bool = False
    lockdown: str = ""
    bcc: bool = False
    load_error: str | None = None
    load_seconds: float = 0.0
    helper_peak_bytes: int = 0
    no_scheduler: str = ""
    no_returns: str = ""
    link_error: str | None = None
    perf_uprobes: bool = False
    costs: Mapping[str, float] | None = None
    libraries: tuple[tuple[str, str], ...] = ()
    unreadable_processes: int = 0
    gpu_error: str | None = None
    gpus: int = 0
    pyarrow: bool = False
    database: str = ""
    database_error: str = ""


def kernel_version(release: str) -> tuple[int, int]:
    """Major and minor version from `uname -r`; zeros for parts that are not numbers."""
    major, minor = [*release.split("-")[0].split("."), "0", "0"][:2]
    return int("".join(filter(str.isdigit, major)) or 0), int("".join(filter(str.isdigit, minor)) or 0)


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
        _btf(facts),
        _lockdown(facts),
        _privileges(facts),
        _mapped_files(facts),
        _bcc(facts),
        _programs(facts),
        _links(facts),
        _returns(facts),
        _scheduler(facts),
        _cost(facts),
        _libraries(facts),
        _gpu(facts),
        _database(facts),
        _recording(facts),
    ]


def can_trace(found: list[Capability]) -> bool:
    """Whether everything that is needed works."""
    return not [one for one in found if one.needed and one.state is Support.MISSING]


def _kernel(facts: Facts) -> Capability:
    version, text = kernel_version(facts.release), f"Linux {facts.release} on {facts.machine}"
    if facts.machine not in ("x86_64", "aarch64"):
        return Capability("kernel", Support.MISSING, text, "run on x86_64 or aarch64", True)
    if version >= OLDEST_KERNEL:
        return Capability("kernel", Support.OK, text, needed=True)
    if version >= OLDEST_BTF_KERNEL:
        return Capability(
            "kernel", Support.DEGRADED, f"{text}: no links of many functions", "Linux 6.6 or newer",
            True,
        )  # fmt: skip
    return Capability("kernel", Support.MISSING, text, "Linux 5.15 or newer, better 6.6", True)


def _btf(facts: Facts) -> Capability:
    if facts.btf:
        return Capability("btf", Support.OK, "/sys/kernel/btf/vmlinux can be read")
    return Capability(
        "btf", Support.DEGRADED, "/sys/kernel/btf/vmlinux is not there or cannot be read",
        "use a distribution's kernel (CONFIG_DEBUG_INFO_BTF), and mount /sys into the container",
    )  # fmt: skip


def _lockdown(facts: Facts) -> Capability:
    if "[confidentiality]" in facts.lockdown:
        return Capability(
            "lockdown", Support.MISSING, "the kernel is locked down for confidentiality: eBPF may read nothing",
            "boot without lockdown=confidentiality; integrity is fine", True,
        )  # fmt: skip
    return Capability("lockdown", Support.OK, facts.lockdown.strip() or "no lockdown", needed=True)


def _privileges(facts: Facts) -> Capability:
    missing = missing_privileges(facts.effective)
    if not missing:
        return Capability("privileges", Support.OK, ", ".join(PRIVILEGES), needed=True)
    needed = bool(set(missing) - {"CAP_SYS_PTRACE"})
    return Capability(
        "privileges", Support.MISSING if needed else Support.DEGRADED, f"{', '.join(missing)} not held",
        _cure(missing), True,
    )  # fmt: skip


def _mapped_files(facts: Facts) -> Capability:
    if not facts.mapped_files_error:
        return Capability("files", Support.OK, "the files that processes map can be opened", needed=True)
    reason, cure = no_mapped_files(facts.mapped_files_error, facts.effective)
    return Capability("files", Support.MISSING, reason, cure, True)


def _bcc(facts: Facts) -> Capability:
    if facts.bcc:
        return Capability("compiler", Support.OK, "python3-bpfcc is installed", needed=True)
    return Capability(
        "compiler", Support.MISSING, "the distribution's BCC bindings are not installed",
        "apt-get install --no-install-recommends python3-bpfcc (the PyPI package named bcc is something else)", True,
    )  # fmt: skip


def _programs(facts: Facts) -> Capability:
    if facts.load_error is None:
        text = f"compiled and loaded in {facts.load_seconds:.1f} s; helper's peak {facts.helper_peak_bytes >> 20} MB"
        return Capability("programs", Support.OK, text, needed=True)
    return Capability("programs", Support.MISSING, facts.load_error, "mend what is missing above", True)


def _links(facts: Facts) -> Capability:
    if facts.load_error is not None:
        return Capability("links", Support.MISSING, "not tried: no programs", needed=True)
    if facts.link_error is None:
        return Capability(
            "links", Support.OK, "a probe attached to many functions at once fires and counts", needed=True
        )
    if facts.perf_uprobes:
        return Capability(
            "links", Support.DEGRADED, f"{facts.link_error}: one link a function, and only the most important ones",
            "Linux 6.6 or newer", True,
        )  # fmt: skip
    return Capability("links", Support.MISSING, facts.link_error, "Linux 6.6 or newer with CONFIG_UPROBES", True)


def _returns(facts: Facts) -> Capability:
    if facts.load_error is not None or facts.link_error is not None:
        return Capability("returns", Support.MISSING, "not tried: no programs, or no links of many functions")
    if facts.no_returns:
        return Capability(
            "returns", Support.DEGRADED, f"{facts.no_returns}: calls are counted, not timed, and no wait is seen",
            "a kernel in which return probes need no system call, or one that filters know (Linux 6.14 or newer)",
        )  # fmt: skip
    return Capability(
        "returns", Support.OK, "a process under a filter of system calls (seccomp) survives being timed"
    )


def _scheduler(facts: Facts) -> Capability:
    if facts.load_error is not None:
        return Capability("scheduler", Support.MISSING, "not tried: no programs")
    if facts.no_scheduler:
        return Capability(
            "scheduler", Support.DEGRADED, f"{facts.no_scheduler}: waiting for processors is not counted",
            "a kernel with BTF (CONFIG_DEBUG_INFO_BTF) that allows raw tracepoints",
        )  # fmt: skip
    return Capability("scheduler", Support.OK, "waiting for processors and disks is told from sleep")


def _cost(facts: Facts) -> Capability:
    costs = facts.costs
    if costs is None:
        return Capability("cost", Support.DEGRADED, "not measured: costs are assumed")
    text = (
        f"{costs[ENTRY]:.0f} ns a counted call, {costs[PAIR]:.0f} ns a timed one, "
        f"{costs[f'{COLLECTIVE}_cold'] + costs[f'{WAIT}_cold']:.0f} ns a collective and its wait after a pause"
    )
    if costs[PAIR] > 8000:
        return Capability(
            "cost", Support.DEGRADED, text, "probes are dear here: more is counted in windows of time only"
        )
    return Capability("cost", Support.OK, text)


def _libraries(facts: Facts) -> Capability:
    hidden = f"; {facts.unreadable_processes} processes cannot be looked into" if facts.unreadable_processes else ""
    if facts.libraries:
        text = ", ".join(f"{kind} of {name}" for kind, name in facts.libraries[:8])
        return Capability("libraries", Support.OK, text + hidden)
    return Capability(
        "libraries", Support.ABSENT, f"no process uses CUDA or NCCL now{hidden}",
        "start a workload; in a container, set hostPID: true" if not hidden else "CAP_SYS_PTRACE and hostPID: true",
    )  # fmt: skip


def _gpu(facts: Facts) -> Capability:
    if facts.gpu_error is None:
        return Capability("gpu", Support.OK, f"{facts.gpus} GPUs through NVML")
    return Capability(
        "gpu",
        Support.ABSENT,
        facts.gpu_error,
        "on a GPU node, mount the driver's libnvidia-ml.so.1 into the container",
    )


def _database(facts: Facts) -> Capability:
    if not facts.database_error:
        return Capability("database", Support.OK, f"{facts.database} can be written", needed=True)
    return Capability(
        "database",
        Support.MISSING,
        facts.database_error,
        "choose a folder that can be written with --db",
        True,
    )


def _recording(facts: Facts) -> Capability:
    if facts.pyarrow:
        return Capability("parquet", Support.OK, "--record writes CSV and Parquet")
    return Capability("parquet", Support.ABSENT, "--record writes CSV only", "pip install 'ingero[analyze]'")
