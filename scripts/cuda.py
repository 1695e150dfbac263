"""Starts the job of `scripts.cuda_job` and talks to it. Used by `bench/gpu.py`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class CudaJobFailed(Exception):
    """The job has ended; the text is the end of what it wrote."""


@dataclass
class CudaJob:
    """A running job. `ras`: address of its RAS service; `pids`: process ids of its ranks."""

    process: subprocess.Popen[str]
    errors: Path
    ras: str
    pids: list[int]

    def go(self) -> None:
        """Let the steps begin."""
        self._tell("go")

    def hurt(self) -> None:
        """Make the late rank late."""
        self.process.send_signal(signal.SIGUSR1)

    def heal(self) -> None:
        """Make it late no longer."""
        self.process.send_signal(signal.SIGUSR2)

    def dump(self, folder: Path) -> list[float]:
        """Write the dumps of all ranks that can; returns how long their steps took since the last dump, seconds."""
        folder.mkdir(exist_ok=True)
        self._ask("dump", folder)
        return [one for file in folder.glob("steps_*.json") for one in json.loads(file.read_text())]

    def profile(self, folder: Path) -> int:
        """Write traces of PyTorch's profiler; returns the number of ranks that did."""
        folder.mkdir(exist_ok=True)
        return self._ask("profile", folder)

    @contextlib.contextmanager
    def stopped(self, rank: int) -> Iterator[None]:
        """Meanwhile this rank's process stands still."""
        os.kill(self.pids[rank], signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pids[rank], signal.SIGCONT)

    def _ask(self, word: str, folder: Path) -> int:
        self._tell(f"{word} {folder}")
        return int(self._line()[1])

    def _tell(self, line: str) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise CudaJobFailed(self._end()) from None

    def _line(self) -> list[str]:
        assert self.process.stdout
        words = self.process.stdout.readline().split()
        if not words:
            raise CudaJobFailed(self._end())
        return words

    def _end(self) -> str:
        return self.errors.read_text(errors="replace")[-2000:]


def why_no_cuda() -> str:
    """Why no job can run on this machine's GPU; empty if one can."""
    command = "import torch, torch.distributed as d; assert torch.cuda.is_available() and d.is_nccl_available()"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, timeout=120)
    return "" if done.returncode == 0 else "needs a GPU and PyTorch for it in this environment: uv pip install torch"


@contextlib.contextmanager
def cuda_job(folder: Path, *flags: object, **environment: str) -> Iterator[CudaJob]:
    """Start a job with the flags of `scripts.cuda_job`; its messages go to a file in `folder`.

    Raises `CudaJobFailed` if it does not begin.
    """
    errors = folder / f"job-{len(list(folder.glob('job-*.log')))}.log"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "scripts.cuda_job", *map(str, flags)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **environment},
        )  # fmt: skip
    try:
        job = CudaJob(process, errors, "", [])
        _, job.ras, *pids = job._line()
        job.pids = [int(pid) for pid in pids]
        yield job
    finally:
        assert process.stdin and process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        process.stdout.close()
