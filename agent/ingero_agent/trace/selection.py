"""Selects the processes to trace by patterns over their command lines. Deciding is separate from reading."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

APART_KERNEL: Final = (6, 10)
"""First kernel on which a probe for one process sees all threads of it."""

T = TypeVar("T")


@dataclass(frozen=True)
class Selection:
    """The patterns. `only`: nothing else is traced; `exclude` wins over it. Without either, everything is traced."""

    only: re.Pattern[str] | None = None
    exclude: re.Pattern[str] | None = None

    def __bool__(self) -> bool:
        return bool(self.only or self.exclude)

    def wants(self, command: str) -> bool:
        """Whether to trace a process with this command line."""
        if self.exclude and self.exclude.search(command):
            return False
        return not self.only or bool(self.only.search(command))


def command_line(pid: int) -> str:
    """A process's command line, arguments separated by spaces; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def split_by_selection(
    found: Mapping[int, T], selection: Selection, command: Callable[[int], str] = command_line
) -> tuple[dict[int, T], set[int]]:
    """Split what was found into what to trace and the processes to leave out."""
    if not selection:
        return dict(found), set()
    wanted = {pid: one for pid, one in found.items() if selection.wants(command(pid))}
    return wanted, set(found) - set(wanted)
