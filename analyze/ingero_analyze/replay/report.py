"""Prints a replay as JSON for programs and as a table for people."""

import json
import math
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from rich.console import Console

from ingero_analyze.replay import sentences
from ingero_analyze.replay.costs import HOUR
from ingero_analyze.replay.excuses import REASONS
from ingero_analyze.replay.result import Replay
from ingero_analyze.terminal import plain, print_rows
from ingero_detect.nodes.verdicts import Kind, Verdict
from ingero_kit.clock import rfc3339

TIMES: Final = ("start", "detected", "end")
EVIDENCE_TIMES: Final = ("since", "detected", "recovered", "time")
SILENCE_TIMES: Final = ("last_report", "since", "until")
EXCUSED: Final = ("came_up", *REASONS)
MEASURED: Final = ("named", "lasted", "lost")
"""Columns of the table that are numbers, besides the cost."""
EVIDENCE: Final = "value / expected when named; evidence / level"

MOST_ROWS: Final = 200
"""Most episodes in the table; JSON has all of them."""


def moment(seconds: float | None, calendar: bool) -> float | str | None:
    """A time as machines join it with the input: seconds if it has seconds, ISO 8601 for any other form."""
    return rfc3339(seconds) if calendar and seconds is not None else seconds


def to_json(done: Replay) -> dict[str, Any]:
    """All results as one JSON object."""
    calendar = done.history.reading.foreign_times
    episodes = []
    for episode in done.episodes:
        found = episode.to_json() | {"evidence": _as_decided(episode.first).to_json()}
        found["lost_node_hours"] = round(done.lost_node_hours(episode), 6)
        for name in TIMES:
            found[name] = moment(found[name], calendar)
        found["evidence"] = {
            name: moment(value, calendar) if name in EVIDENCE_TIMES else value
            for name, value in found["evidence"].items()
        }
        episodes.append(found)
    summary = done.summary()
    for job in summary.get("job_slow", ()):
        job["since"] = moment(job["since"], calendar)
    listed = ("drifts", "stuck", "other_unit", *EXCUSED)
    for found in (one for name in listed for one in summary[name]):
        found |= {name: moment(found[name], calendar) for name in ("since", "until")}
    for one in summary["behind"]:
        one["since"] = moment(one["since"], calendar)
    for silence in (*summary["drained"], *summary["silent"]["at_end"], *summary["silent"]["ended"]["first"]):
        silence |= {name: moment(silence[name], calendar) for name in SILENCE_TIMES}
    return {"episodes": episodes, "summary": summary}


def _as_decided(verdict: Verdict) -> Verdict:
    """The verdict with what was expected by the comparison that accused the node: for `slow_from_start` the usual
    rate of its peers, instead of what its own history, slow as it is, leads to expect."""
    if verdict.kind is not Kind.SLOW_FROM_START or verdict.value is None or verdict.severity >= 1:
        return verdict
    kept = 1 - verdict.severity
    return replace(verdict, expected=verdict.value / kept, residual=math.log(kept))


def print_json(done: Replay) -> None:
    """One object on standard output."""
    print(json.dumps(to_json(done), ensure_ascii=False))


def print_table(done: Replay, console: Console) -> None:
    """The episodes as a table: which node, since when, how severe, how certain."""
    calendar, steps = done.history.reading.calendar, done.history.reading.steps
    for doubt in done.history.reading.doubts:
        console.print(f"in doubt: {doubt}")
    if done.episodes:
        cohorts = any(episode.first.cohort for episode in done.episodes)
        measured = (*MEASURED, "node-steps" if steps else "node-hours")
        titles = ("node", *(("cohort",) if cohorts else ()), "kind", "since", *measured, EVIDENCE)
        rows = []
        for episode in done.episodes[:MOST_ROWS]:
            first = episode.first
            since = first.since or 0.0
            seconds = round(done.lasted(episode))
            lasted = f"{seconds:,} steps" if steps else str(timedelta(seconds=seconds))
            rows.append((
                plain(f"{first.cluster}/{first.node}" if first.cluster else first.node),
                *((plain(first.cohort) or "-",) if cohorts else ()),
                str(episode.last.kind),
                sentences.short_time(since, calendar),
                f"+{(first.detected or since) - since:.6g}{'' if steps else ' s'}",
                lasted + ("" if episode.ended else ", then silent" if done.fell_silent(episode) else " and on"),
                f"{100 * episode.severity:.0f} %",
                f"{done.lost_node_hours(episode) * (HOUR if steps else 1):.3g}",
                _evidence(_as_decided(episode.first).to_json()),
            ))  # fmt: skip
        print_rows(console, titles, rows, measured)
    else:
        console.print("nobody was accused")
    if len(done.episodes) > MOST_ROWS:
        console.print(f"and {len(done.episodes) - MOST_ROWS} more; --json has them all")
    for line in sentences.below(done):
        console.print(line)
    about = done.summary()
    if about["digest"]:
        console.print(f"digest {about['digest']}", style="dim")
    if states := about.get("recorded_states"):
        console.print(sentences.states_sentence(states), style="dim")


def _evidence(verdict: dict[str, Any]) -> str:
    value, expected = verdict["value"], verdict["expected"]
    if verdict["axis"] == "state":
        return "no work while its cohort goes on"
    if value is None or expected is None:
        return str(verdict["axis"])
    words = f"{value:.4g} / {expected:.4g}"
    if verdict["evidence"] is not None and verdict["level"]:
        words += f"; {verdict['evidence']:.1f} / {verdict['level']:.1f}"
    return words + ("; expected: its peers' median" if verdict["kind"] == Kind.SLOW_FROM_START else "")
