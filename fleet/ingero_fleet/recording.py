"""Records the detector's input as a CSV file that `ingero-fleet replay` judges again, tick for tick."""

import contextlib
import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from ingero_contract.values import NodeState
from ingero_detect.nodes.cohorts import CohortKey
from ingero_detect.nodes.fingerprint import processor_text
from ingero_detect.nodes.observation import ABSENT, ACTIVE, CALIBRATING, HELD, IDLE, Observation
from ingero_kit.write_watch import WriteWatch

PARTS: Final = ("workload_type", "job_id", "gpu_model", "stage", "cgroup_path_hash", "measure")
"""Columns that together name a cohort; `measure` separates nodes judged by score from those judged by rate."""

MERGEABLE: Final = (3, 4, 5)
"""Positions of GPU model, stage and cgroup in a cohort's key: the parts that a small one may drop to find peers."""

STATES: Final = {
    ACTIVE: str(NodeState.ACTIVE), IDLE: str(NodeState.IDLE), CALIBRATING: str(NodeState.CALIBRATING),
    ABSENT: "absent", HELD: "held",
}  # fmt: skip
"""Values of the column `state`."""

RECORDED: Final = "recorded"
"""Column that only recordings have: `whole` or `early` tick, or `empty`, one without nodes, which is a row without
values. All rows of a recorded tick have the same time."""

EMPTY: Final = "empty"

STATES_SUFFIX: Final = ".states"
"""Ending of the file with state hashes: a line of digest, state hash and processor for every twelfth tick."""

MAX_STATES_BYTES: Final = 16 << 20
"""Size at which it begins anew."""

HEADER: Final = ("time", "cluster", "node", *PARTS, "state", "rate", RECORDED)


class TickRecorder:
    """Appends ticks to a file; when it is full it becomes `FILE.1` and a new one begins.

    Never raises: a tick that cannot be written is left out as a whole and counted, and the next one is tried.
    """

    def __init__(self, file: Path, most_bytes: int) -> None:
        self._file, self._most = file, most_bytes
        self._states_file = file.with_name(file.name + STATES_SUFFIX)
        self._watch, self._states_watch = WriteWatch("history", file), WriteWatch("history", self._states_file)
        self._stream: TextIO | None = None
        self._written = 0

    @property
    def failures(self) -> int:
        """Ticks and state hashes that could not be written."""
        return self._watch.failures + self._states_watch.failures

    def write(self, now: float, seen: Observation) -> None:
        """Append one tick."""
        try:
            stream = self._open()
            rows = csv.writer(stream, lineterminator="\n")
            if not seen.names:
                rows.writerow((repr(now), *("" for _ in HEADER[1:-1]), EMPTY))
            values, states = seen.value.tolist(), seen.state.tolist()
            kind = "early" if HELD in states else "whole"
            for (cluster, node), number, value, state in zip(
                seen.names, seen.cohort.tolist(), values, states, strict=True
            ):
                parts = _padded(seen.cohorts[number])
                number_text = "" if np.isnan(value) else repr(value)
                rows.writerow((repr(now), cluster, node, *parts, STATES[state], number_text, kind))
            stream.flush()
            self._written = stream.tell()
            self._watch.succeeded()
        except OSError as error:
            self._watch.failed(error)
            self._take_back()

    def note_state(self, digest: str, state_hash: str) -> None:
        """Append the state hash after a tick to `FILE.states`, so that `replay` can compare its own."""
        file = self._states_file
        try:
            if file.exists() and file.stat().st_size > MAX_STATES_BYTES:
                file.unlink()
            with file.open("a", encoding="utf-8") as stream:
                stream.write(f"{digest},{state_hash},{processor_text()}\n")
            self._states_watch.succeeded()
        except OSError as error:
            self._states_watch.failed(error)

    def _take_back(self) -> None:
        """Remove a partly written tick."""
        opened = self._stream is not None
        self.close()
        if opened:
            with contextlib.suppress(OSError):
                os.truncate(self._file, self._written)

    def _open(self) -> TextIO:
        if self._stream is not None and self._stream.tell() > self._most:
            self.close()
            self._file.replace(self._file.with_name(self._file.name + ".1"))
        if self._stream is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh = not self._file.exists() or not self._file.stat().st_size
            self._stream = self._file.open("a", encoding="utf-8", newline="")
            self._written = self._stream.tell()
            if fresh:
                csv.writer(self._stream, lineterminator="\n").writerow(HEADER)
        return self._stream

    def close(self) -> None:
        """Close the file."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(OSError):  # closing flushes the buffer, which fails again where writing failed
                stream.close()


def _padded(key: CohortKey) -> Sequence[str]:
    return key[1 : 1 + len(PARTS)]
