"""Starts the helper process that loads the kernel programs, and receives their descriptors."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ingero_kit.logs import get

log = get(__name__)

HELPER_SECONDS: Final = 60.0
RING_BYTES: Final = 2**20
ADVICE: Final = ": tracing needs"
"""What the text of `CannotTrace` has before general advice."""


def forget(files: Iterable[str]) -> None:
    """Drop the page cache of files that no process maps any more, as it counts as the container's memory."""
    for file in files:
        with suppress(OSError):
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


class CannotTrace(Exception):
    """This machine cannot be traced; the text says why and what to do."""


@dataclass(frozen=True)
class LoadedPrograms:
    """Descriptors of programs and maps by name; what the helper cost, in seconds and bytes.

    `origin`: "prebuilt" (as shipped) or "compiled" (with BCC).
    `no_scheduler`: why the scheduler is not watched, empty if it can be.
    """

    descriptors: dict[str, int]
    seconds: float
    peak_bytes: int
    no_scheduler: str = ""
    origin: str = "prebuilt"


def load_programs(mode: str = "multi", origin: str = "auto", ring_bytes: int = RING_BYTES) -> LoadedPrograms:
    """Load the programs in a separate process.

    `mode` is "multi" (links of many functions) or "perf" (one function each); `origin` is "prebuilt", "compiled", or
    "auto": compiled where the shipped ones cannot be used. Raises `CannotTrace`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(HELPER_SECONDS)
    command = [sys.executable, "-m", "ingero_agent.trace.helper", str(theirs.fileno()), mode, str(ring_bytes)]
    command.append(origin)
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL) as helper:
        theirs.close()
        try:
            text, descriptors, _, _ = socket.recv_fds(ours, 65536, 253)
        except TimeoutError:
            helper.kill()
            raise CannotTrace(f"loading the eBPF programs took longer than {HELPER_SECONDS:.0f} s") from None
        try:
            helper.wait(HELPER_SECONDS)  # it has sent its message and exits
        except subprocess.TimeoutExpired:
            helper.kill()
    message = json.loads(text or b'{"error": "the helper ended without a message"}')
    if "error" in message:
        raise CannotTrace(
            f"{message['error']}{ADVICE} root (CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE), "
            "Linux 6.6 or newer with BTF, and libbpf1; `ingero-agent check` says which of them is missing"
        )
    forget(message["files"])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    loaded = LoadedPrograms(
        dict(zip(message["names"], descriptors, strict=True)), float(message["seconds"]), peak,
        message["no_scheduler"], message["origin"],
    )  # fmt: skip
    if "not_prebuilt" in message:
        log.warning("shipped_programs_not_used", reason=message["not_prebuilt"])
    log.info("programs_loaded", origin=loaded.origin, seconds=loaded.seconds, helper_peak_bytes=peak)
    return loaded
