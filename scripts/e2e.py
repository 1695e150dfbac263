"""End-to-end run with real processes: the published scenario, then further cases; exit status 0 if all rows pass.

Fleet, agents, sink, tracer and workloads are real, on this machine. Each case says what it shortens.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

from rich import box
from rich.console import Console
from rich.table import Table

from scripts.gloo import has_torch
from scripts.lab import Lab, LabFailed, Site, laboratory
from scripts.synchronised import Jobs, Plan, can_trace

PUSH = 5.0
PUBLISHED_SECONDS = (26, 33)
WITHIN = 10
SHORT_PUSH = 0.2
SHORT_NODES = 6
SOAK_PUSHES = 720
BUDGET = 1e-4
LEAK_A_MINUTE = 0.01
LEAK_LIMIT = 0.15


@dataclass(frozen=True)
class Row:
    """One line of the table. `seconds` is `None` where time is not measured."""

    case: str
    what: str
    expected: str
    got: str
    seconds: float | None
    ok: bool


Say = Callable[[str], None]


def names(nodes: Iterable[str]) -> str:
    """Node names as text."""
    return ", ".join(sorted(nodes)) or "nobody"


def published(say: Say, lab: Lab) -> list[Row]:
    """Three nodes, a workload on each, a push every 5 s; when the threshold is stable one workload is stopped."""
    case, warmup, learnt = "published scenario", 5, 5
    say(
        f"3 nodes, a push every {PUSH:g} s as published; shortened: {warmup} and {learnt} samples of warm-up "
        "of agent and Fleet (production: 30 each), a quorum of 3 (production: 5)"
    )
    site = Site(lab, "published", PUSH, ("node-0", "node-1", "node-2"))
    victim = site.nodes[-1]
    site.start_fleet(processors__ingero__detector__warmup_ticks=str(learnt))
    site.start_workloads()
    site.start_agents(warmup)
    site.start_sink(victim)
    say(f"all nodes known and well after {lab.wait('all nodes to be known', site.ready, 180):.0f} s")
    say(f"threshold {threshold_in_words(site)}; the workload of {victim} is taken away")
    wrong = set[str]()

    def named() -> bool:
        found = site.named()
        wrong.update(found - {victim})
        return victim in found

    begun = time.monotonic()
    site.hurt(signal.SIGSTOP, victim)
    by_fleet = lab.wait(f"{victim} to be named", named, 90)
    say(f"Fleet names {victim} after {by_fleet:.1f} s")
    lab.wait("the sink to hear of it", lambda: site.sink_events()[0] > 0, 30)
    at_sink = time.monotonic() - begun
    say(f"the sink of {victim} has booked it after {at_sink:.1f} s; the workload is brought back")
    site.hurt(signal.SIGCONT, victim)
    healed = lab.wait("the sink to hear that it is over", lambda: not named() and site.sink_events()[1] > 0, 120)
    say(f"resolved after {healed:.1f} s")
    state, resolved, errors = site.sink_events()
    took = " and ".join(f"{seconds} s" for seconds in PUBLISHED_SECONDS)
    return [
        Row(
            case,
            "time to straggler, event at the sink",
            f"≤ {WITHIN} s (published: {took})",
            victim,
            at_sink,
            at_sink <= WITHIN,
        ),
        Row(case, "time to straggler, named by Fleet", f"≤ {WITHIN} s", victim, by_fleet, by_fleet <= WITHIN),
        Row(case, "anybody else named", "nobody", names(wrong), None, not wrong),
        Row(case, "sink events: state", "≥ 1", str(state), None, state >= 1),
        Row(case, "sink events: resolved", "1", str(resolved), healed, resolved == 1),
        Row(case, "sink parse errors", "0", str(errors), None, errors == 0),
    ]


def threshold_in_words(site: Site) -> str:
    """Wait until the threshold moves by less than 0.01 in two pushes; at most a minute, as load moves it too."""
    seen: list[tuple[float, float]] = []

    def settled() -> bool:
        found = site.get("threshold", f"/api/v1/threshold?cluster_id={site.cluster}") or {}
        if not found.get("quorum_met"):
            seen.clear()
            return False
        now = time.monotonic()
        seen.append((now, found["threshold"]))
        moved = [value for moment, value in seen if now - moment <= 2 * site.interval]
        return now - seen[0][0] >= 2 * site.interval and max(moved) - min(moved) < 0.01

    try:
        seconds = site.lab.wait("a stable threshold", settled, 60)
    except LabFailed:
        site.lab.check()
        return f"{seen[-1][1]:.3f}, still moving after a minute" if seen else "without a quorum for a minute"
    return f"{seen[-1][1]:.3f}, stable after {seconds:.0f} s"


def late_rank(say: Say, lab: Lab, gloo: bool = False) -> list[Row]:
    """One rank of a synchronised job of 8 processes computes 5 % longer."""
    case, plan = "late rank in gloo" if gloo else "late rank", Plan()
    jobs = Jobs(Site(lab, "job", PUSH, ()), plan, not gloo and can_trace(), gloo)
    say(
        f"{plan.ranks} processes in lockstep ({jobs.path}); {1000 * plan.step_seconds:.0f} ms a step with "
        f"{plan.jitter:.0%} of jitter, mostly sleeping, as a rank does whose GPU works; Fleet judges every {PUSH:g} s"
    )
    jobs.site.start_fleet()
    jobs.start()
    outcome = jobs.watch(settle=10.0, linger=PUSH)
    say(f"{outcome.why or 'nobody was named'}")
    got = "nobody" if outcome.seconds is None else f"rank {plan.late}"
    within = outcome.seconds is not None and outcome.seconds <= WITHIN
    how = "seen by eBPF" if jobs.traced else "reported by themselves"
    what = f"rank {plan.late} of {plan.ranks} computes {plan.extra:.0%} longer, {how}"
    return [
        Row(case, what, f"rank {plan.late}, ≤ {WITHIN} s", got, outcome.seconds, within),
        Row(case, "any other rank named, or anybody before", "nobody",
            names(f"rank {rank}" for rank in outcome.wrong), None, not outcome.wrong),
    ]  # fmt: skip


class Shortened:
    """Six nodes that push 25 times more often than in the published scenario."""

    def __init__(self, say: Say, lab: Lab) -> None:
        nodes = tuple(f"node-{number}" for number in range(SHORT_NODES))
        self.say, self.lab, self.site = say, lab, Site(lab, "shortened", SHORT_PUSH, nodes)
        self.leak = LEAK_A_MINUTE / 60 * PUSH / SHORT_PUSH

    def start(self) -> None:
        """Start everything and wait until all nodes are healthy."""
        times = PUSH / SHORT_PUSH
        self.say(
            f"{SHORT_NODES} nodes, compressed {times:.0f} times: a push every "
            f"{SHORT_PUSH:g} s instead of {PUSH:g} s, and {times:.0f} times as many false alarms allowed an hour. "
            "The noise of this machine is not compressed: on a busy one these cases say nothing"
        )
        site = self.site
        site.start_fleet(
            processors__ingero__ttl_multiplier="100",
            processors__ingero__detector__false_alarms_per_node_hour=str(BUDGET * times),
        )
        site.start_workloads("--steps", "200", "--size", "32", "--leak", str(self.leak), "--slow", "0.33")
        site.start_agents(30)
        self.say(f"all nodes known and well after {self.lab.wait('all nodes to be known', site.ready, 120):.0f} s")

    def watch(self, seconds: float, done: Callable[[set[str]], bool]) -> tuple[float | None, set[str]]:
        """Poll until the condition holds or the time is over; returns the duration and all nodes named meanwhile."""
        begun, named = time.monotonic(), set[str]()
        while (passed := time.monotonic() - begun) < seconds:
            self.lab.check()
            now = self.site.named()
            for node in sorted(now - named):
                found = self.site.get("diagnostics", f"/api/v1/why?node_id={node}") or {}
                self.say(f"{node} after {passed:.1f} s: {found.get('why', '')}")
            named |= now
            if done(now):
                return passed, named
            time.sleep(SHORT_PUSH / 2)
        return None, named

    def heal(self) -> None:
        """Restore full speed everywhere; continues when all are healthy, or after half a minute with a message."""
        self.site.hurt(signal.SIGUSR2, *self.site.nodes)
        begun = time.monotonic()
        while not (well := self.site.ready()) and time.monotonic() - begun < 30:
            self.lab.check()
            time.sleep(SHORT_PUSH / 2)
        self.say(f"{'all nodes well' if well else 'not all nodes well'} after {time.monotonic() - begun:.1f} s")

    def soak(self) -> Row:
        """An hour without any fault."""
        seconds = SOAK_PUSHES * SHORT_PUSH
        self.say(f"soak: {SOAK_PUSHES} pushes of every node, an hour of pushes at {PUSH:g} s, in {seconds:.0f} s")
        _, named = self.watch(seconds, lambda _: False)
        hours = SHORT_NODES * SOAK_PUSHES * PUSH / 3600
        return Row(
            "soak", f"{hours:.0f} node-hours of pushes, nothing wrong", "nobody", names(named), seconds, not named
        )

    def slow_leak(self) -> Row:
        """One node loses 1 % of its speed a minute."""
        victim = self.site.nodes[-1]
        self.say(f"slow leak: {victim} loses {LEAK_A_MINUTE:.0%} of its speed every {60 / PUSH:.0f} pushes")
        self.site.hurt(signal.SIGALRM, victim)
        took, named = self.watch(2 * LEAK_LIMIT / self.leak, lambda now: victim in now)
        lost = 1.0 if took is None else took * self.leak
        words = names(named) if took is None else f"{names(named)} at {lost:.1%}"
        what = f"{LEAK_A_MINUTE:.0%} of its speed every {60 / PUSH:.0f} pushes"
        return Row("slow leak", what, f"{victim}, before {LEAK_LIMIT:.0%} is lost", words, took,
                   named == {victim} and lost < LEAK_LIMIT)  # fmt: skip

    def half(self) -> Row:
        """Half of the nodes drop to a third of their speed at once."""
        slow = set(self.site.nodes[: SHORT_NODES // 2])
        self.say(f"half the fleet: {names(slow)} fall to a third of their speed")
        self.site.hurt(signal.SIGUSR1, *slow)
        took, named = self.watch(30, lambda now: now == slow)
        _, after = self.watch(20 * SHORT_PUSH, lambda _: False)
        ok = took is not None and named | after == slow
        return Row("half the fleet", "three of six at a third of their speed", f"{names(slow)}; nobody else",
                   names(named | after), took, ok)  # fmt: skip


def shortened(say: Say, lab: Lab, wanted: set[str]) -> list[Row]:
    """The compressed cases, one after the other on the same nodes."""
    run = Shortened(say, lab)
    run.start()
    rows: list[Row] = []
    cases = {"soak": run.soak, "leak": run.slow_leak, "half": run.half}
    for name in (case for case in CASES if case in cases and case in wanted):
        if rows:
            run.heal()
        rows.append(cases[name]())
    return rows


CASES = ("published", "rank", "soak", "leak", "half")


Group = Callable[[Say, Lab], list[Row]]


def groups(wanted: set[str]) -> list[dict[str, Group]]:
    """The cases to run, by name. Groups of one entry run concurrently, as they mostly wait; the late rank alone."""
    rest = [case for case in ("soak", "leak", "half") if case in wanted]
    waiting: dict[str, Group] = {}
    if "published" in wanted:
        waiting["published scenario"] = published
    if rest:
        waiting[", ".join(rest)] = lambda say, lab: shortened(say, lab, set(rest))
    late: list[dict[str, Group]] = [{"late rank": late_rank}] if "rank" in wanted else []
    if late and has_torch():
        late.append({"late rank in gloo": partial(late_rank, gloo=True)})
    return [waiting, *late]


def play(todo: list[dict[str, Group]], say: Say) -> list[Row]:
    """Run every group in a separate lab; a failing group does not prevent the others."""

    def run(name: str, group: Group) -> list[Row]:
        try:
            with laboratory("e2e") as lab:
                return group(lambda text: say(f"{name}: {text}"), lab)
        except LabFailed as error:
            say(f"{name}: [red]{error}[/]")
            return [Row(name, "seen to its end", "yes", str(error), None, False)]

    rows: list[Row] = []
    for parallel in todo:
        with ThreadPoolExecutor(max(1, len(parallel))) as pool:
            for found in pool.map(run, parallel.keys(), parallel.values()):
                rows += found
    return rows


def table(rows: list[Row]) -> Table:
    """Print the rows as a table."""
    found = Table("case", "what", "expected", "got", "seconds", "verdict", box=box.MARKDOWN)
    for row in rows:
        seconds = "–" if row.seconds is None else f"{row.seconds:.1f}"
        verdict = "[green]as expected[/]" if row.ok else "[bold red]NOT AS EXPECTED[/]"
        found.add_row(row.case, row.what, row.expected, row.got, seconds, verdict)
    return found


def main() -> int:
    """Parse the flags, run, print the table."""
    parser = argparse.ArgumentParser(prog="make e2e ARGS=...", description=__doc__)
    parser.add_argument("--only", action="append", choices=CASES, help="this case only; may be given several times")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    flags = parser.parse_args()
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    started = time.monotonic()
    try:
        rows = play(groups(set(flags.only or CASES)), progress.print)
    except KeyboardInterrupt:
        return 130
    seconds = time.monotonic() - started
    ok = all(row.ok for row in rows)
    if flags.json:
        print(json.dumps({"ok": ok, "seconds": round(seconds, 1), "rows": [asdict(row) for row in rows]}))
    else:
        console = Console(highlight=False)
        Console(highlight=False, width=None if console.is_terminal else 200).print(table(rows))
        progress.print(f"{sum(row.ok for row in rows)} of {len(rows)} rows as expected, in {seconds:.0f} s")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
