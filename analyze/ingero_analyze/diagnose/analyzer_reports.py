"""Reads what PyTorch's analyzer of Flight Recorder dumps (fr_trace) prints, as the dumps that it was made from. Pure.

A report has one block for each collective that not all ranks joined, or that they called differently. Only what
blocks say is in these dumps: who has called the collective, and who has not.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ingero_analyze.diagnose.sources import SourceError
from ingero_contract.identifiers import Rank

MARKS: Final = (b"Not all ranks joining collective", b"Collective sequence number:", b"Input/output mismatch in the")
"""How blocks of a report begin, of which it has one at least."""

ENTRIES: Final = (b"(input_sizes=", b"(s=")
"""What the list of calls has that the analyzer prints with -j."""

_BEGIN: Final = re.compile(
    r"^.*?(?:" + "|".join(mark.decode() for mark in MARKS) + r")\D*(?P<seq>\d+).*$", re.MULTILINE
)
_FIELD: Final = re.compile(
    r"^.*?\b(?P<name>group info|collective|missing ranks|error messages?|input sizes|expected ranks|world size"
    r"|collective state): *(?P<value>.*)$",
    re.MULTILINE,
)
_CULPRIT: Final = re.compile(r"Culprit rank (\d{1,7}); *Error type: (\w+)(?:[^;]*?found \w[\w ]*: '([^']*)')?")
_SIZES: Final = re.compile(r"\d{1,18}")

MAX_RANKS: Final = 1 << 20


def is_of_analyzer(data: bytes) -> bool:
    """Whether a text is what the analyzer prints: a report, or the list of calls."""
    return any(mark in data for mark in MARKS) or (b"Rank 0" in data and any(mark in data for mark in ENTRIES))


def dumps_of_report(text: str) -> dict[Rank, dict[str, Any]]:
    """By rank, a dump with the collectives of a report. Raises `SourceError` for anything that is no report."""
    dumps: dict[Rank, dict[str, Any]] = {}
    for seq, fields in _blocks(text):
        name, _, desc = fields.get("group info", "").partition(":")
        expected = _expected(fields, desc)
        missing = _ranks(fields.get("missing ranks", ""))
        culprits = {
            Rank(int(rank)): (kind, found) for rank, kind, found in _CULPRIT.findall(fields.get("errors", ""))
        }
        for rank in expected:
            dump = dumps.setdefault(rank, {"entries": [], "pg_config": {}})
            dump["pg_config"][name] = {"name": name, "desc": desc, "ranks": sorted(expected)}
            if rank not in missing:
                dump["entries"].append(_entry(seq, name, desc, fields, *culprits.get(rank, ("", ""))))
    if not dumps and any(mark.decode() in text for mark in ENTRIES):
        raise SourceError(
            "the list that fr_trace -j prints has no groups and no numbers of calls; give the dumps that it was made "
            "from, or what fr_trace prints without -j"
        )
    if not dumps:
        raise SourceError("no report of Flight Recorder's analyzer that says which ranks a collective has")
    return dumps


def _blocks(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    begins = list(_BEGIN.finditer(text))
    ends = [*(found.start() for found in begins), len(text)][1:]
    for begin, end in zip(begins, ends, strict=True):
        fields: dict[str, str] = {}
        for found in _FIELD.finditer(text, begin.end(), end):
            fields.setdefault(
                "errors" if found["name"].startswith("error") else found["name"], found["value"].strip()
            )
        yield int(begin["seq"]), fields


def _expected(fields: Mapping[str, str], desc: str) -> set[Rank]:
    """The ranks of a group; of the group of all, those that are counted. Older analyzers print how many there are."""
    expected = fields.get("expected ranks", "")
    if not expected.isdecimal():
        return _ranks(expected)
    if desc != "default_pg" or int(expected) > MAX_RANKS:
        raise SourceError("expected ranks: the analyzer of this PyTorch does not say which ranks a group has")
    return {Rank(rank) for rank in range(int(expected))}


def _ranks(text: str) -> set[Rank]:
    return {Rank(int(rank)) for rank in re.findall(r"\d{1,7}", text)}


def _entry(seq: int, name: str, desc: str, fields: Mapping[str, str], error: str, found: str) -> dict[str, Any]:
    """A call of a collective, as a dump has it; `error` and what was `found` of a rank that called it differently."""
    op = fields.get("collective", "").removeprefix("nccl:")
    sizes = [[int(size) for size in _SIZES.findall(fields.get("input sizes", ""))]]
    state = fields.get("collective state", "scheduled")
    if error == "COLLECTIVE_TYPE_MISMATCH":
        op = found or f"another than {op}"
    elif error == "COLLECTIVE_STATE_MISMATCH":
        state = found or state
    elif error == "SIZE_OR_SYNTAX_MISMATCH":
        sizes = [[int(size) for size in _SIZES.findall(found)] or [-1]]
    types = ["another" if error == "COLLECTIVE_DTYPE_MISMATCH" else ""]
    return {
        "process_group": [name, desc], "collective_seq_id": seq, "profiling_name": f"nccl:{op}", "state": state,
        "input_sizes": sizes, "input_dtypes": types,
    }  # fmt: skip
