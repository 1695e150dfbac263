"""Events of torchrun (`torch.distributed.elastic.events`) say which worker failed, and none that is late. Pure."""

import json
import re
from typing import Any, Final

from ingero_analyze.diagnose.columns import RECORD

_EVENT: Final = re.compile(r'\{.*"metadata"\s*:\s*\{.*"total_run_time".*\}')
_MARK: Final = '"total_run_time"'
_LONGEST: Final = 1 << 16
"""What every event has, and characters of the longest line that is one."""

_FAILED: Final = ("failed", "error")
SHOWN: Final = 16
"""Ranks that are told."""


def events_of(begin: str) -> list[dict[str, Any]]:
    """The events among the lines of a text, whatever a logger puts before them."""
    found = []
    for line in begin.splitlines() if _MARK in begin else ():
        if _MARK in line and len(line) <= _LONGEST and (event := _EVENT.search(line)):
            try:
                found.append(json.loads(event[0]))
            except ValueError:
                continue
    return [event for event in found if isinstance(event.get("metadata"), dict)]


def told_of(events: list[dict[str, Any]]) -> str:
    """What events show, and what to give instead."""
    failed = dict.fromkeys(
        str(rank)
        for event in events
        if str(event["metadata"].get("state", "")).lower() in _FAILED
        and (rank := event["metadata"].get("global_rank", event["metadata"].get("rank"))) is not None
    )
    which = (
        f"they say that the worker of rank {', '.join([*failed][:SHOWN])} failed: look at its log and its error file"
        if failed
        else "they say of no worker that it failed"
    )
    return (
        "these are events of torchrun, with the time for which whole workers ran, which is about the same for all "
        f"ranks of a job and tells none that is late; {which}. Of a hang, give the Flight Recorder's dumps "
        f"(--flight-recorder); of a slow job, {RECORD}"
    )
