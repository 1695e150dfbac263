"""Why a node is not traced, or only in part: one line for each reason, as a container's termination message has it.

The tracer writes the lines to its termination log while a reason applies. On Kubernetes an init container writes them
before the tracer starts and ends with status 0, so that the pod's status shows them
(`status.initContainerStatuses[].state.terminated.message`) while the tracer runs.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

CHECK_CONTAINER: Final = "check"
"""Name of that init container."""

TERMINATION_LOG: Final = "/dev/termination-log"
"""File whose content becomes the termination message of a container, unless its spec names another."""

MAX_SENTENCE: Final = 900
"""Most characters of a reason's sentence. All reasons together fit into a termination message (4096 bytes)."""


class TraceProblem(StrEnum):
    """Machine-readable reason, in the form of a reason of a Kubernetes condition."""

    NO_BTF = "NoBTF"
    """The kernel offers no type information: some probes are missing."""
    NO_NVML = "NoNVML"
    """The GPU driver cannot be asked: no memory, clocks or throttling."""
    PRIVILEGES_REFUSED = "PrivilegesRefused"
    """The kernel refuses what tracing needs: a capability is missing, or a security module or lockdown forbids it."""
    NO_CUDA_LIBRARIES = "NoCUDALibraries"
    """Processes use the GPUs, but no CUDA or NCCL library of theirs is seen: nothing is counted."""


_REASONS: Final = frozenset(TraceProblem)


def format_problems(problems: Mapping[TraceProblem, str]) -> str:
    """One line `REASON: sentence with the cure` for each; empty without problems."""
    sentences = {reason: " ".join(text.split())[:MAX_SENTENCE] for reason, text in problems.items()}
    return "".join(f"{reason}: {text}\n" for reason, text in sentences.items())


def parse_problems(text: str) -> dict[TraceProblem, str]:
    """The problems of a termination message. Lines of any other form are ignored."""
    found: dict[TraceProblem, str] = {}
    for line in text.splitlines():
        reason, separator, sentence = line.partition(": ")
        if separator and sentence and reason in _REASONS:
            found[TraceProblem(reason)] = sentence[:MAX_SENTENCE]
    return found
