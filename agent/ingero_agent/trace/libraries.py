"""GPU libraries that processes map, as values."""

from dataclasses import dataclass
from pathlib import Path

CUDART, CUDA, NCCL = "cudart", "cuda", "nccl"


@dataclass(frozen=True)
class FileIdentity:
    """Identifies a file by its inode, also when two overlay mounts give it different device numbers.

    The inode's change time (ctime) is not part of it: a new name, link or mode changes the ctime, but not the code.
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
