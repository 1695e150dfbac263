"""What a replay says in sentences below its table: how much was judged, what happened to all nodes, and how the files
were read."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from ingero_analyze.replay.column_names import LABELS
from ingero_analyze.replay.costs import HOUR
from ingero_analyze.replay.excuses import REASONS, Reason
from ingero_analyze.replay.result import Replay
from ingero_analyze.terminal import listed, plain

MOST_NAMES: Final = 10
"""Most nodes, columns and cohorts that are named; JSON has all of them."""

CAME_UP: Final = (
    "a node that had done nothing came up later or more slowly than its peers, and then had its usual rate: Fleet "
    "names it meanwhile"
)
WHY: Final[dict[Reason, str]] = {
    "uneven": (
        "a node lost more than most in a change of its whole cohort, but no more than its nodes differ by in that, "
        "or came back last, and was well when that had ended: Fleet names it meanwhile"
    ),
    "shared": (
        "a node lost no more, and for no longer, than half of its peers have at some time without being accused: "
        "Fleet names it"
    ),
    "other_job": (
        "a node went silent, and came back together with others at a rate that had changed for all of these, while"
        " the rest of its cohort worked on, or lost no more than others gained for good, as nodes of a job do that"
        " no column tells: Fleet names it"
    ),
    "rollout": (
        "a node changed its rate as most of its cohort did, one node after another, or later than these, as in a "
        "rolling update: Fleet names it"
    ),
    "routine": (
        "a node lost what half of its cohort lose again and again, as much and as long, each node at its own time,"
        " as in backups that go round: Fleet names it"
    ),
    "pause": (
        "a node paused for two ticks, or three if these are no more than five minutes, and never again lost "
        "anything for which it was accused: Fleet names it"
    ),
    "job_end": (
        "a node did nothing any more, as at least two others since the same tick, or half of its cohort at other "
        "times, which is how jobs end that no column tells: Fleet names it"
    ),
    "together": (
        "a node lost for a while what others did since the same time, three tenths of its cohort or more: nodes of"
        " a job do that which no column tells (job_id): Fleet names it"
    ),
    "late": (
        "a node's values follow those of its cohort earlier or later than they are dated, or averaged, and it lost "
        "nothing else, as where a clock is off: Fleet names it"
    ),
}
"""What was excused, by the reason."""


def below(done: Replay) -> Iterator[str]:
    """The sentences, in order."""
    calendar, about = done.history.reading.calendar, done.summary()
    steps, tick = done.history.reading.steps, done.history.tick_seconds
    judged, lost = f"{about['node_hours']:,.1f} node-hours", f"{about['lost_node_hours']:,.2f} node-hours"
    if steps:
        judged, lost = (f"{about[name] * HOUR:,.0f} node-steps" for name in ("node_hours", "lost_node_hours"))
    words = (
        f"{_counted(about['nodes'], 'node')}, {_counted(about['ticks'], 'tick')} of "
        f"{_counted(round(tick), 'step') if steps else f'{tick:g} s'}, {judged} judged, "
        f"{_counted(about['episodes'], 'episode')}"
    )
    if about["episodes"]:
        words += f" that cost {lost}"
    if about["budget"] is not None:
        allowed = about["budget"] * about["node_hours"]
        words += f"; the budget allows {allowed:.2g} false ones, {about['estimated_false_alarms']:.2g} are estimated"
    yield words
    if about["budget"] is not None:
        yield from _limits(about)
    yield from _drifts(about["drifts"], calendar)
    yield from _behind(about["behind"], calendar)
    yield from _slow_jobs(about, calendar)
    yield from _drained(about["drained"], calendar)
    yield from _excused(about["came_up"], CAME_UP, calendar)
    for reason in REASONS:
        yield from _excused(about[reason], WHY[reason], calendar)
    yield from _silent(about["silent"], calendar)
    yield from _timetables(about["timetables"], "steps" if steps else "s")
    yield from _stuck(about["stuck"], calendar)
    yield from _other_units(about["other_unit"], calendar)
    yield from _reading(done, about)


def _slow_jobs(about: dict[str, Any], calendar: bool) -> Iterator[str]:
    """Losses of whole cohorts, a line for each cohort."""
    cohorts: dict[str, list[dict[str, Any]]] = {}
    for job in about.get("job_slow", ()):
        cohorts.setdefault(job["cohort"], []).append(job)
    for name, jobs in list(cohorts.items())[:MOST_NAMES]:
        few = name in about["small_cohorts"]
        least, most = (f"{100 * each(job['severity'] for job in jobs):.0f}" for each in (min, max))
        lost = least if least == most else f"{least} to {most}"
        since = short_time(jobs[0]["since"], calendar)
        words = f"{_cohort(name)} lost {lost} % {'on average' if few else 'together'}"
        if len(jobs) > 1:
            words += f", {len(jobs):,} times, from {since} to {short_time(jobs[-1]['since'], calendar)}"
            why = "new phases or a slow job, nobody's fault; rises between them are not listed"
        else:
            words += f", since {since}"
            why = "a new phase or a slow job, nobody's fault"
        yield f"{words}: {'too few nodes to tell whose fault' if few else why}"
    if len(cohorts) > MOST_NAMES:
        yield f"so did {_counted(len(cohorts) - MOST_NAMES, 'more cohort')}; --json has them all"


def _drifts(drifts: list[dict[str, Any]], calendar: bool) -> Iterator[str]:
    """Nodes that fell behind slowly, a line for each."""
    for drift in drifts[:MOST_NAMES]:
        name = plain("/".join(filter(None, (drift["cluster"], drift["node"]))))
        since, until = (short_time(drift[name], calendar) for name in ("since", "until"))
        yield (
            f"{name} lost {100 * drift['severity']:.0f} % against its peers between {since} and {until}, too slowly "
            "to be accused: see whether its work or its hardware changed"
        )
    if len(drifts) > MOST_NAMES:
        yield f"so did {_counted(len(drifts) - MOST_NAMES, 'more node')}; --json has them all"


def _behind(behind: list[dict[str, Any]], calendar: bool) -> Iterator[str]:
    """Nodes that are slow in every job, a line for each."""
    for one in behind[:MOST_NAMES]:
        name = plain("/".join(filter(None, (one["cluster"], one["node"]))))
        yield (
            f"{name} was {100 * one['severity']:.0f} % slower than its peers in its {one['jobs']} jobs since "
            f"{short_time(one['since'], calendar)}, each of them too small or too short to accuse it"
        )
    if len(behind) > MOST_NAMES:
        yield f"so were {_counted(len(behind) - MOST_NAMES, 'more node')}; --json has them all"


def _drained(drained: list[dict[str, Any]], calendar: bool) -> Iterator[str]:
    if drained:
        shown = [
            plain("/".join(filter(None, (one["cluster"], one["node"]))))
            + f" at {short_time(one['last_report'], calendar)}"
            for one in drained[:MOST_NAMES]
        ]
        yield (
            f"{_counted(len(drained), 'time')}, a node's rate fell to nearly nothing and it went silent, as one that "
            "is drained does: Fleet names it while it falls, but it was no slow node: "
            f"{listed(shown, len(drained))}"
        )


def _excused(excused: list[dict[str, Any]], what: str, calendar: bool) -> Iterator[str]:
    """Accusations that what followed, or what peers did, explains."""
    if excused:
        shown = _spells(excused, len(excused), calendar)
        yield f"{_counted(len(excused), 'time')}, {what}, but it was no slow node: {shown}"


def _spells(first: list[dict[str, Any]], count: int, calendar: bool) -> str:
    """Nodes with the beginning and end of something, the first of `count`."""
    shown = [
        plain("/".join(filter(None, (one["cluster"], one["node"]))))
        + f" from {short_time(one['since'], calendar)} to {short_time(one['until'], calendar)}"
        for one in first[:MOST_NAMES]
    ]
    return listed(shown, count)


def _limits(about: dict[str, Any]) -> Iterator[str]:
    """Why the detector could judge nobody, or not all nodes."""
    parameters, small = about["parameters"], about["small_cohorts"]
    if about["ticks"] <= parameters["warmup"]:
        words = f"the history has no more ticks than the warm-up ({parameters['warmup']}): nobody is judged"
        yield words + (
            "; a shorter one, such as --warmup 10, judges with less certainty" if about["ticks"] > 12 else ""
        )
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
                + (f" since {short_time(one['since'], calendar)}" if "since" in one else "")
                for one in every[:MOST_NAMES]
            ]
            words = what if len(every) == 1 else what.replace("was", "were", 1)
            yield f"{_counted(len(every), 'node')} {words}: {listed(shown, len(every))}"
    if count := silent["ended"]["count"]:
        yield (
            f"{_counted(count, 'time')}, a node was silent for a while and came back, of which nobody is accused: "
            f"{_spells(silent['ended']['first'], count, calendar)}"
        )


def _timetables(found: list[dict[str, Any]], unit: str) -> Iterator[str]:
    if found:
        shown = [
            f"{plain('/'.join(filter(None, (one['cluster'], one['node']))))} ({100 * one['severity']:.0f} % every "
            f"{one['period']:.6g} {unit} for {one['length']:g} {unit})"
            for one in found[:MOST_NAMES]
        ]
        yield (
            f"{_counted(len(found), 'node')} {'loses' if len(found) == 1 else 'lose'} work at a strict period since "
            "the first rows, as for checkpoints; rows at these times count as no reports: "
            f"{listed(shown, len(found))}"
        )


def _stuck(stuck: list[dict[str, Any]], calendar: bool) -> Iterator[str]:
    if stuck:
        shown = [_rows_of(one, calendar) for one in stuck[:MOST_NAMES]]
        yield (
            "values that repeat while those of others change, as of an exporter that hangs, count as no reports: "
            f"{listed(shown, len(stuck))}"
        )


def _other_units(found: list[dict[str, Any]], calendar: bool) -> Iterator[str]:
    if found:
        shown = [f"{_rows_of(one, calendar)} {_conversion(one['factor'])}" for one in found[:MOST_NAMES]]
        yield f"values in another unit than those beside them were converted: {listed(shown, len(found))}"


def _conversion(factor: float) -> str:
    return f"divided by {factor:.7g}" if factor > 1 else f"multiplied by {1 / factor:.7g}"


def _rows_of(one: dict[str, Any], calendar: bool) -> str:
    node = plain("/".join(filter(None, (one["cluster"], one["node"]))))
    since, until = (short_time(one[name], calendar) for name in ("since", "until"))
    return f"{node} ({one['rows']:,} rows from {since} to {until})"


def _reading(done: Replay, about: dict[str, Any]) -> Iterator[str]:
    """How the file was read, where it is no recording, and what of it was not used."""
    reading = done.history.reading
    missing, problems = about["without_value"], about["problems"]
    if not reading.recorded:
        roles = {role: names for role, names in reading.used.items() if role not in LABELS}
        columns = [
            role if names == [role] else f"{role} = {plain(', '.join(names))}" for role, names in roles.items()
        ]
        labels = plain(", ".join((*reading.used.get("cluster", ()), *reading.labels)))
        compared = f"{_counted(about['cohorts'], 'cohort')} by {labels}" if labels else "no column forms cohorts"
        yield f"columns: {', '.join(columns)}; {compared}" + "".join(f"; {note}" for note in reading.notes)
        if reading.ignored:
            yield f"columns not used: {plain(listed(reading.ignored[:MOST_NAMES], len(reading.ignored)))}"
    if missing["count"]:
        rows = _counted(missing["count"], "row")
        yield f"no report: {rows} without a value, first {plain(missing['first'])}"
    if problems["count"]:
        yield f"{_counted(problems['count'], 'row')} could not be used, first {plain(problems['first'][0])}"
    if problems["count"] and reading.recorded:
        yield "rows of a recording are missing, so this is not what that Fleet has judged"


def states_sentence(states: dict[str, Any]) -> str:
    """Whether the states are those that the recording holds."""
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


def short_time(seconds: float | None, calendar: bool) -> str:
    """A time for people, in the input's own unit."""
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if calendar else f"{seconds:.10g}"
