"""GPU libraries that processes map, as values."""

from dataclasses import dataclass
from pathlib import Path

CUDART, CUDA, NCCL = "cudart", "cuda", "nccl"


@dataclass(frozen=True)
class FileIdentity:
    """Same bytes, same inode, also when two overlay mounts give it different device numbers.

    The time of the inode's last change is no part of it: a new name, link or mode changes it, and not the code.
    """

    inode: int
    size: int
    modified_ns: int


@dataclass(frozen=True)
class MappedLibrary:
    """A library in use. `path` opens it, whatever the process's root is."""

    kind: str
    pid: int
    identity: FileIdentity
    path: Path
    name: str = ""
