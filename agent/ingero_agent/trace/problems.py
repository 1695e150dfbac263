"""Says why this node is not traced, or only in part, where an operator can read it."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from ingero_agent.trace.capabilities import Capability, Support
from ingero_agent.trace.gpu_stats import GpuSample
from ingero_agent.trace.loader import ADVICE
from ingero_contract.node_problems import TraceProblem, format_problems
from ingero_kit.logs import get

log = get(__name__)

_REASONS: Final = {
    "btf": TraceProblem.NO_BTF,
    "privileges": TraceProblem.PRIVILEGES_REFUSED,
    "files": TraceProblem.PRIVILEGES_REFUSED,
    "lockdown": TraceProblem.PRIVILEGES_REFUSED,
    "gpu": TraceProblem.NO_NVML,
}
_REFUSALS: Final = ("not permitted", "Permission denied", "may be opened")
_ALLOW: Final = (
    "allow bpf(2) and perf_event_open(2) in the seccomp profile and the security module (SELinux, AppArmor) of the "
    "container, or set spec.agents.trace.unconfined"
)


def find_problems(
    capabilities: Iterable[Capability], gpus: Iterable[GpuSample] = (), traced: Collection[int] = ()
) -> dict[TraceProblem, str]:
    """Every reason with its cure. `gpus`: what the driver says now; `traced`: processes whose libraries are seen.

    Pure. That no process uses a GPU is not a problem; that the traced ones are others than those on the GPUs is.
    """
    found: dict[TraceProblem, str] = {}
    for one in capabilities:
        reason, fix = _REASONS.get(one.name), one.fix
        if one.name == "programs" and any(text in one.reason for text in _REFUSALS):
            reason, fix = TraceProblem.PRIVILEGES_REFUSED, _ALLOW
        if reason and one.state is not Support.OK:
            found.setdefault(reason, f"{one.reason.split(ADVICE)[0]}; {fix}")
    unseen = sorted({pid for gpu in gpus for pid in gpu.processes} - set(traced))
    if unseen and not traced:
        found[TraceProblem.NO_CUDA_LIBRARIES] = (
            f"{len(unseen)} processes use the GPUs (such as {unseen[0]}), and no libcudart, libcuda or libnccl of "
            "any is seen; set hostPID: true, and do not exclude them with --only-command or --exclude-command"
        )
    return found


class TerminationLog:
    """Keeps the current problems in the file that becomes the container's termination message.

    It writes only where the file exists, as in a container of Kubernetes, and only when the problems change.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._written: Mapping[TraceProblem, str] = {}

    def write(self, problems: Mapping[TraceProblem, str]) -> None:
        """Replace the content. Logs each change, and an error of the file."""
        if problems == self._written:
            return
        for reason, text in problems.items():
            if reason not in self._written:
                log.warning("trace_problem", reason=str(reason), detail=text)
        self._written = dict(problems)
        if self._file.exists():
            try:
                self._file.write_text(format_problems(problems))
            except OSError as error:
                log.warning("termination_log_not_written", file=str(self._file), reason=str(error))
