"""Compile the kernel programs that the agent ships: `python -m scripts.probes [FOLDER]`, after `make probes`.

The same sources and the same compiler give the same bytes.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from ingero_agent.trace.prebuilt import OBJECTS, object_file
from ingero_agent.trace.probes.table import NUMBERS

PROBES: Final = OBJECTS.parent
SOURCES: Final = "SOURCES.sha256"
"""File beside the objects with the hash of what they were made from."""

CLANG, OBJCOPY = "clang-19", "llvm-objcopy-19"
ARCHITECTURES: Final = ("x86_64", "aarch64")
NEEDS: Final = f"needs {CLANG} and {OBJCOPY}: apt-get install --no-install-recommends clang-19 llvm-19"


def is_possible() -> bool:
    """Whether the compiler is there."""
    return bool(shutil.which(CLANG) and shutil.which(OBJCOPY))


def command(machine: str, *, in_namespace: bool) -> list[str]:
    """The compiler's command, to run in the folder of the sources; the name of the object is added."""
    return [
        CLANG, "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-nostdinc", "-Iinclude",
        "-fdebug-compilation-dir=.", f"-D__{machine}__", *(("-DIN_NAMESPACE",) if in_namespace else ()),
        *(f"-D{name}={number}U" for name, number in NUMBERS.items()),
        "-include", "calls.bpf.c", "-c", "sched.bpf.c", "-o",
    ]  # fmt: skip


VARIANTS: Final = [(machine, in_namespace) for machine in ARCHITECTURES for in_namespace in (False, True)]


def sources_hash() -> str:
    """Of the compiler's commands and of every source."""
    found = hashlib.sha256()
    for machine, in_namespace in VARIANTS:
        found.update("\0".join(command(machine, in_namespace=in_namespace)).encode())
    for file in sorted([*PROBES.glob("*.c"), *PROBES.glob("include/**/*.h")]):
        found.update(f"{file.relative_to(PROBES)}\0{file.read_text()}\0".encode())
    return found.hexdigest()


def build(folder: Path) -> None:
    """Write the objects and the hash of their sources into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for machine, in_namespace in VARIANTS:
        made = folder / object_file(machine, in_namespace=in_namespace).name
        subprocess.run([*command(machine, in_namespace=in_namespace), made.absolute()], cwd=PROBES, check=True)
        # Maps need their types; lines and names for debugging are four fifths of the file.
        subprocess.run([OBJCOPY, "-g", "-R", ".BTF.ext", "-R", ".rel.BTF.ext", made], check=True)
    (folder / SOURCES).write_text(f"{sources_hash()}\n")


if __name__ == "__main__":
    if not is_possible():
        sys.exit(NEEDS)
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else OBJECTS)
