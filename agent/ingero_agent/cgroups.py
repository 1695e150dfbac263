"""The cgroup of a process."""

import hashlib
from pathlib import Path


def cgroup_path(text: str) -> str:
    """The cgroup path in /proc/PID/cgroup: the line of version 2, otherwise the longest path of version 1."""
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    unified = [line.split(":", 2)[2] for line in text.splitlines() if line.startswith("0::")]
    return unified[0] if unified else max(paths, key=len, default="")


def cgroup_hash(file: Path = Path("/proc/self/cgroup")) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the cgroup path; empty when it cannot be read."""
    try:
        path = cgroup_path(file.read_text())
    except OSError:
        return ""
    return hashlib.sha256(path.encode()).hexdigest()[:16] if path else ""
