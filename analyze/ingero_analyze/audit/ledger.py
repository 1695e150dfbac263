"""Keeps audits in a file of JSON lines: whether a chip is new on the list, still on it, or back after a repair."""

import fcntl
import json
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from ingero_analyze.table_errors import TableError
from ingero_kit.clock import rfc3339

MAX_BYTES: Final = 256 << 20
BEGINS: Final = '{"time": "'
"""What every line of a ledger begins with, also one that was cut off."""


@dataclass
class LedgerEntry:
    """What earlier audits said about one chip, node or group.

    `since`: when it was last put on the list; `cleared`: since when it is no longer on it.
    """

    first: str
    since: str = ""
    named: int = 0
    last: str = ""
    cleared: str = ""
    repairs: int = 0
    returned: int = 0


@dataclass
class AuditLedger:
    """All entries by identity, how many lines could not be read, and the digests and identities of the audits."""

    entries: dict[str, LedgerEntry] = field(default_factory=dict)
    unreadable: int = 0
    audits: int = 0
    digests: set[str] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)

    def apply(self, line: Mapping[str, Any]) -> None:
        """Take one line into account."""
        time = str(line["time"])
        for name in line.get("repaired", ()):
            entry = self.entries.setdefault(name, LedgerEntry(time))
            entry.repairs, entry.cleared = entry.repairs + 1, time
        for name in {*line.get("cleared", ()), *unpacked(line.get("of", ""))}.difference(line.get("named", ())):
            if name in self.entries and not self.entries[name].cleared:
                self.entries[name].cleared = time
        for name in line.get("named", ()):
            entry = self.entries.setdefault(name, LedgerEntry(time))
            entry.returned += bool(entry.cleared and entry.named)
            entry.first = entry.first if entry.named else time
            entry.since = time if entry.cleared or not entry.named else entry.since
            entry.named, entry.last, entry.cleared = entry.named + 1, time, ""

    def note(self, line: Mapping[str, Any]) -> None:
        """Take into account what does not depend on when the line is from."""
        if "digest" in line:
            self.audits += 1
            self.digests.add(str(line["digest"]))
        self.judged.update(line.get("named", ()), unpacked(line.get("of", "")))

    def nearest(self, name: str) -> list[str]:
        """Known identities that are written like this one; itself alone if it is known."""
        known = self.judged | set(self.entries)
        return [name] if name in known else get_close_matches(name, sorted(known), 5)

    def story(self, name: str) -> dict[str, Any]:
        """What to say about an identity that is named now, before this audit is applied."""
        entry = self.entries.get(name)
        if entry is None or not entry.named:
            return {"state": "new", "named_before": 0}
        story: dict[str, Any] = {"state": "returned" if entry.cleared else "still", "named_before": entry.named,
                                 "first": entry.first, "since": entry.since, "last": entry.last,
                                 "repairs": entry.repairs, "returned": entry.returned}  # fmt: skip
        if entry.cleared:
            story |= {"cleared": entry.cleared, "returned": entry.returned + 1}
            del story["since"]
        return story

    def cleared_by(self, judged: Iterable[str], named: Iterable[str]) -> list[str]:
        """Identities on the list that were judged now and not named."""
        present, again = set(judged), set(named)
        return sorted(
            name
            for name, entry in self.entries.items()
            if name in present - again and entry.named and not entry.cleared
        )


def read_ledger(file: Path, until: float | None = None) -> AuditLedger:
    """The ledger in a file; an empty one if there is none. Lines that cannot be read are counted.

    Lines count in the order of their times, and entries are those of a moment if it is given. `TableError` if the
    file holds something else, such as a table of results.
    """
    ledger, lines = AuditLedger(), list[Mapping[str, Any]]()
    if not file.exists():
        return ledger
    if file.stat().st_size > MAX_BYTES:
        raise TableError(str(file), f"a ledger of more than {MAX_BYTES >> 20} MiB")
    for text in file.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
            if not {"digest", "repaired"} & set(line):
                raise ValueError("not of an audit")
            AuditLedger().apply(line)
            ledger.note(line)
            lines.append(line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            ledger.unreadable += bool(text.strip())
    if ledger.unreadable and not lines and not _cut_off(file):
        raise TableError(str(file), "not a ledger of audits; give --ledger a file of its own")
    last = rfc3339(until) if until is not None else ""
    for line in sorted(lines, key=lambda line: str(line["time"])):
        if not last or str(line["time"]) <= last:
            ledger.apply(line)
    return ledger


def _cut_off(file: Path) -> bool:
    """Whether the only lines that a file has may be those of a ledger that were cut off."""
    with file.open(errors="replace") as stream:
        first = next((line.strip() for line in stream if line.strip()), "")
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return first.startswith(BEGINS) or BEGINS.startswith(first)
    return False


def packed(names: Iterable[str]) -> str:
    """Names as one short text."""
    return b64encode(zlib.compress("\n".join(sorted(names)).encode(errors="replace"), 9)).decode()


def unpacked(text: str) -> list[str]:
    """The names in such a text. `ValueError` if it is none."""
    if not text:
        return []
    try:
        return zlib.decompressobj().decompress(b64decode(text, validate=True), MAX_BYTES).decode().split("\n")
    except zlib.error as error:
        raise ValueError(str(error)) from None


def append(file: Path, line: Mapping[str, Any]) -> None:
    """Add one line, durably. A last line that was cut off is ended first."""
    data = (json.dumps(line, ensure_ascii=False) + "\n").encode(errors="replace")
    with file.open("ab+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        size = stream.seek(0, os.SEEK_END)
        if size:
            stream.seek(size - 1)
            data = data if stream.read(1) == b"\n" else b"\n" + data
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def audit_line(
    time: float, digest: str, fdr: float, judged: Collection[str], losses: Mapping[str, float], cleared: Sequence[str]
) -> dict[str, Any]:
    """The line of one audit; `losses` are those of what it names, `judged` everything that it could name."""
    return {"time": rfc3339(time), "digest": digest, "fdr": fdr, "judged": len(judged), "named": list(losses),
            "losses": {name: round(loss, 4) for name, loss in losses.items()}, "cleared": list(cleared),
            "of": packed(judged)}  # fmt: skip
