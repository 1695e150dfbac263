"""Executes the commands of a document: its ```sh blocks in one shell, in namespaces of their own.

In a network namespace every port is free, so that documents name the default ports; in a process namespace everything
that the page started ends with its shell. A ```text block after a ```sh block is its expected output: each line must
appear in the output, in this order; `...` stands for any text. A ```console block is not executed.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOOPBACK = (
    "import fcntl, os, socket, struct, sys; probe = socket.socket(); "
    "fcntl.ioctl(probe, 0x8914, struct.pack('16sh', b'lo', 1 | 64)); os.execvp(sys.argv[1], sys.argv[1:])"
)


@dataclass
class Block:
    """A fenced block; `kind` is the word after the fence."""

    kind: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    return [Block(kind, text) for kind, text in FENCE.findall(page.read_text())]


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


def play(page: Path, root: Path, home: Path, seconds: float, path: str = "", prefix: tuple[str, ...] = ()) -> str:
    """Execute a page from the folder `root` with another home folder, and compare; returns the whole output."""
    blocks = blocks_of(page)
    script = "set -eu\n" + "".join(
        f"{block.text}echo '=== {number}'\n" for number, block in enumerate(blocks) if block.kind == "sh"
    )
    environment = {**os.environ, "HOME": str(home), "PATH": f"{path}:{os.environ['PATH']}"}
    with (home / "output").open("w+") as stream:
        started = subprocess.Popen(
            [*prefix, "bash", "-c", script], cwd=root, env=environment, stdout=stream, stderr=stream
        )
        try:
            started.wait(seconds)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        output = (home / "output").read_text()
    logs = "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in sorted(home.rglob("*.log")))
    assert started.returncode == 0, f"{page.name} ended with {started.returncode}:\n{output}\n{logs}"
    for number, block in enumerate(blocks):
        if block.kind == "text":
            _compare(block.text, _output_of(output, blocks, number), page.name)
    return output


def _output_of(output: str, blocks: list[Block], number: int) -> str:
    """What the last executed block before block `number` printed."""
    executed = [place for place, block in enumerate(blocks) if block.kind == "sh"]
    last = max(place for place in executed if place < number)
    before = [place for place in executed if place < last]
    start = output.index(f"=== {before[-1]}\n") if before else 0
    return output[start : output.index(f"=== {last}\n")]


def _compare(expected: str, output: str, name: str) -> None:
    at = 0
    for line in filter(None, expected.splitlines()):
        pattern = ".*".join(map(re.escape, line.strip().split("...")))
        found = re.compile(pattern).search(output, at)
        assert found, f"{name}: {line!r} is not in\n{output}"
        at = found.end()
