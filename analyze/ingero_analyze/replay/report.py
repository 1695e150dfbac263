"""Prints a replay as JSON for programs and as a table for people."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ingero_analyze.replay.columns import LABELS
from ingero_analyze.replay.judge import Replay
from ingero_analyze.terminal import plain
from ingero_detect.verdicts import Kind, Verdict
from ingero_kit.clock import rfc3339

TIMES: Final = ("start", "detected", "end")
EVIDENCE_TIMES: Final = ("since", "detected", "recovered", "time")
SILENCE_TIMES: Final = ("last_report", "since", "until")
MOST_NAMES: Final = 10
"""Most silent nodes and columns that are named; JSON has all of them."""

MOST_ROWS: Final = 200
"""Most episodes in the table; JSON has all of them."""


def moment(seconds: float | None, calendar: bool) -> float | str | None:
    """A time in the input's own unit."""
    return rfc3339(seconds) if calendar and seconds is not None else seconds


def to_json(done: Replay) -> dict[str, Any]:
    """All results as one JSON object."""
    calendar = done.history.reading.calendar
    episodes = []
    for episode in done.episodes:
        found = episode.to_json() | {"evidence": _as_decided(episode.first).to_json()}
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
    for silence in (*summary["silent"]["at_end"], *summary["silent"]["ended"]["first"]):
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
    calendar = done.history.reading.calendar
    for doubt in done.history.reading.doubts:
        console.print(f"in doubt: {doubt}")
    if done.episodes:
        table = Table()
        cohorts = any(episode.first.cohort for episode in done.episodes)
        for name in ("node", *(("cohort",) if cohorts else ()), "kind", "since", "named", "lasted", "lost"):
            right = name in ("named", "lasted", "lost")
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        table.add_column("value / expected when named; evidence / level", overflow="fold")
        for episode in done.episodes[:MOST_ROWS]:
            first = episode.first
            since = first.since or 0.0
            end = episode.end if episode.ended else done.last
            lasted = str(timedelta(seconds=round(max(0.0, (end or since) - since))))
            table.add_row(
                plain(f"{first.cluster}/{first.node}" if first.cluster else first.node),
                *((plain(first.cohort) or "-",) if cohorts else ()),
                str(episode.last.kind),
                _short(since, calendar),
                f"+{(first.detected or since) - since:.6g} s",
                lasted + ("" if episode.ended else " and on"),
                f"{100 * max(first.severity, episode.last.severity):.0f} %",
                _evidence(_as_decided(episode.first).to_json()),
            )
        console.print(table)
    else:
        console.print("nobody was accused")
    if len(done.episodes) > MOST_ROWS:
        console.print(f"and {len(done.episodes) - MOST_ROWS} more; --json has them all")
    about = done.summary()
    words = (
        f"{_counted(about['nodes'], 'node')}, {_counted(about['ticks'], 'tick')} of {done.history.tick_seconds:g} s, "
        f"{about['node_hours']:,.1f} node-hours judged, {_counted(about['episodes'], 'episode')}"
    )
    if about["budget"] is not None:
        allowed = about["budget"] * about["node_hours"]
        words += f"; the budget allows {allowed:.2g} false ones, {about['estimated_false_alarms']:.2g} are estimated"
    console.print(words)
    for line in _limits(about) if about["budget"] is not None else ():
        console.print(line)
    for job in about.get("job_slow", ()):
        few = job["cohort"] in about["small_cohorts"]
        why = "too few nodes to tell whose fault" if few else "a new phase or a slow job, nobody's fault"
        console.print(
            f"{_cohort(job['cohort'])} lost {100 * job['severity']:.0f} % {'on average' if few else 'together'}, "
            f"since {_short(job['since'], calendar)}: {why}"
        )
    for line in (*_silent(about["silent"], calendar), *_reading(done, about)):
        console.print(line)
    if about["digest"]:
        console.print(f"digest {about['digest']}", style="dim")
    if states := about.get("recorded_states"):
        console.print(_states_sentence(states), style="dim")


def _limits(about: dict[str, Any]) -> Iterator[str]:
    """Why the detector could judge nobody, or not all nodes."""
    parameters, small = about["parameters"], about["small_cohorts"]
    if about["ticks"] <= parameters["warmup"]:
        yield f"the history has no more ticks than the warm-up ({parameters['warmup']}): nobody is judged"
    elif not about["node_hours"] and not small:
        yield "nobody is judged: no node worked in one cohort for as long as the warm-up"
    if small:
        nodes, cohorts = _counted(sum(small.values()), "node"), _counted(len(small), "cohort")
        fewest = parameters["min_peers"]
        yield f"{nodes} cannot be judged, in {cohorts} with fewer than {fewest} nodes to compare"


def _silent(silent: dict[str, Any], calendar: bool) -> Iterator[str]:
    for what, every in (("was silent at the end, dead or taken away", silent["at_end"]),
                        ("never had a value", silent["always"])):  # fmt: skip
        if every:
            shown = [
                plain("/".join(filter(None, (one["cluster"], one["node"]))))
                + (f" since {_short(one['since'], calendar)}" if "since" in one else "")
                for one in every[:MOST_NAMES]
            ]
            words = what if len(every) == 1 else what.replace("was", "were", 1)
            yield f"{_counted(len(every), 'node')} {words}: {_listed(shown, every)}"


def _reading(done: Replay, about: dict[str, Any]) -> Iterator[str]:
    """How the file was read, where it is no recording, and what of it was not used."""
    reading = done.history.reading
    missing, problems = about["without_value"], about["problems"]
    if not reading.recorded:
        roles = {role: names for role, names in reading.used.items() if role not in LABELS}
        columns = [
            role if names == [role] else f"{role} = {plain(', '.join(names))}" for role, names in roles.items()
        ]
        labels = plain(", ".join(reading.labels))
        compared = f"{_counted(about['cohorts'], 'cohort')} by {labels}" if labels else "no column forms cohorts"
        yield f"columns: {', '.join(columns)}; {compared}" + "".join(f"; {note}" for note in reading.notes)
        if reading.ignored:
            yield f"columns not used: {plain(_listed(reading.ignored[:MOST_NAMES], reading.ignored))}"
    if missing["count"]:
        rows = _counted(missing["count"], "row")
        yield f"no report: {rows} without a value, first {plain(missing['first'])}"
    if problems["count"]:
        yield f"{_counted(problems['count'], 'row')} could not be used, first {plain(problems['first'][0])}"
    if problems["count"] and reading.recorded:
        yield "rows of a recording are missing, so this is not what that Fleet has judged"


def _listed(shown: Sequence[str], every: Sequence[Any]) -> str:
    more = len(every) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _states_sentence(states: dict[str, Any]) -> str:
    if states["differ"]:
        return (
            f"results may differ on this processor: {states['differ']} of {states['compared']} recorded states "
            f"differ (recorded with {states['recorded_with']}, replayed with {states['replayed_with']})"
        )
    return f"results are equal: all {states['compared']} recorded states are"


def _cohort(name: str) -> str:
    return f"the whole cohort {plain(name)}" if name else "all nodes"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _short(seconds: float | None, calendar: bool) -> str:
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if calendar else f"{seconds:.10g}"


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
