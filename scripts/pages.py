"""Executes the commands of a document: its ```sh blocks in one shell, in namespaces of their own.

In a network namespace every port is free, so that documents name the default ports; in a process namespace everything
that the page started ends with its shell. A ```text block after a ```sh block is its expected output: each line must
appear in the output, in this order; `...` stands for any text. A ```console block is not executed, and neither is one
whose condition, a comment before it, does not hold.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts import steps

FENCE = re.compile(r"(?:^<!-- ((?:from|with) [^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RELEASE, REPOSITORY, NODES = "from a release", "from the repository", "with nodes"
LOOPBACK = (
    "import fcntl, os, socket, struct, sys; probe = socket.socket(); "
    "fcntl.ioctl(probe, 0x8914, struct.pack('16sh', b'lo', 1 | 64)); "
    "fcntl.ioctl(probe, 0x8916, struct.pack('16sHH4s8x', b'lo:1', 2, 0, bytes([127, 0, 0, 2]))); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Runs its arguments with a loopback interface. It has a second address because glibc does not count 127.0.0.1 for
programs that ask for names of configured families only, as Slurm does."""


@dataclass
class Block:
    """A fenced block; `kind` is the word after the fence, `condition` is when it is for the reader, if not always."""

    kind: str
    text: str
    condition: str = ""


class PageFailed(AssertionError):
    """The commands of a page failed, or printed something else."""


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    return [Block(kind, text, condition) for condition, kind, text in FENCE.findall(page.read_text())]


def namespaces() -> list[str]:
    """The command that runs another one in new namespaces; empty where that is not possible."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [unshare, *user, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += [sys.executable, "-c", LOOPBACK]
    done = subprocess.run([*command, "true"], capture_output=True)
    return command if done.returncode == 0 else []


def chosen(blocks: list[Block], *conditions: str) -> list[Block]:
    """The blocks whose condition is one of these, with what they print, and those without any."""
    found, last = [], True
    for block in blocks:
        if block.kind != "text":
            last = not block.condition or block.condition in conditions
        if last:
            found.append(block)
    return found


def script(blocks: list[Block]) -> str:
    """The commands of these blocks; a line after each tells where its output ends."""
    return "set -eu\n" + "".join(
        f"{block.text}echo '{_end(number)}'\n" for number, block in enumerate(blocks) if block.kind == "sh"
    )


def compare(blocks: list[Block], output: str, name: str) -> None:
    """Look for the expected lines in what the script printed."""
    for number, block in enumerate(blocks):
        if block.kind == "text":
            _compare(block.text, _output_of(output, blocks, number), name)


def transcript(blocks: list[Block], output: str) -> str:
    """The commands, each block followed by what it printed, up to the one that failed."""
    parts = []
    for number, block in enumerate(blocks):
        if block.kind == "sh":
            printed, ended, output = output.partition(f"{_end(number)}\n")
            parts.append("".join(f"$ {line}\n" for line in block.text.splitlines()) + printed)
            if not ended:
                break
    return "\n".join(parts)


def play(page: Path, root: Path, home: Path, seconds: float, path: str = "", prefix: tuple[str, ...] = ()) -> str:
    """Execute a page from the folder `root` with another home folder, and compare; returns the whole output."""
    blocks = chosen(blocks_of(page), REPOSITORY)
    environment = {**os.environ, "HOME": str(home), "PATH": f"{path}:{os.environ['PATH']}"}
    code, output = run([*prefix, "bash", "-c", script(blocks)], root, environment, home / "output", seconds)
    if code:
        logs = "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in sorted(home.rglob("*.log")))
        raise PageFailed(f"{page.name} ended with {code}:\n{output}\n{logs}")
    compare(blocks, output, page.name)
    return output


def run(command: list[str], root: Path, environment: Mapping[str, str], out: Path, seconds: float) -> tuple[int, str]:
    """Exit status and output of a command that is ended after this time, with its process group."""
    with out.open("w+") as stream:
        done = steps.command(command, root, environment, errors=subprocess.STDOUT, seconds=seconds, output=stream)
    return done.returncode, out.read_text(errors="replace")


def _end(number: int) -> str:
    return f"=== {number}"


def _output_of(output: str, blocks: list[Block], number: int) -> str:
    """What the last executed block before block `number` printed."""
    executed = [place for place, block in enumerate(blocks) if block.kind == "sh"]
    last = max(place for place in executed if place < number)
    before = [place for place in executed if place < last]
    start = output.index(f"{_end(before[-1])}\n") if before else 0
    return output[start : output.index(f"{_end(last)}\n")]


def _compare(expected: str, output: str, name: str) -> None:
    at = 0
    for line in filter(None, expected.splitlines()):
        pattern = ".*".join(map(re.escape, line.strip().split("...")))
        found = re.compile(pattern).search(output, at)
        if not found:
            raise PageFailed(f"{name}: {line!r} is not in\n{output}")
        at = found.end()
