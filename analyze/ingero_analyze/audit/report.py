"""Prints an audit as JSON for programs and as tables for people."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from rich.console import Console

from ingero_analyze.audit.chips import Coded
from ingero_analyze.audit.evidence import NO_EVIDENCE, compared, likely_cause, says
from ingero_analyze.audit.inputs import MOST_NAMES, AuditInput, members_of
from ingero_analyze.audit.labels import in_common
from ingero_analyze.terminal import listed, plain, print_rows
from ingero_detect.audit.audit_results import AuditResult, PopulationResult, SlowUnit
from ingero_detect.audit.audit_tiers import FEWEST_PARENTS, AuditLevel
from ingero_detect.audit.wrong_values import DoubtfulUnit
from ingero_detect.grouped import Ints

MOST_ROWS: Final = 200
"""Most findings in the table; JSON has all of them."""

SINGLE: Final = (
    "one run a chip: noise and chip cannot be separated. A finding assumes that healthy chips have one distribution, "
    "which all values show, and losses of at most 1.25 times the largest gain; repeat the run before acting"
)

AGAIN: Final = (
    "one value, of less than half the usual speed, is an error of the measurement as often as a broken chip, so they "
    "are not judged: measure them again; those that are as slow twice are named"
)

ALONE: Final = (
    "which names one only where it is 1.25 times as far away as any bad value of the others and any gain; repeat "
    "the run before acting on it"
)


def identity(one: SlowUnit, given: AuditInput) -> str:
    """The name of what a finding is about, as the ledger knows it."""
    return _named(one.level, one.number, given)


def _named(level: AuditLevel, number: int, given: AuditInput) -> str:
    names = {AuditLevel.CHIP: given.chips, AuditLevel.NODE: given.nodes, AuditLevel.GROUP: given.groups}[level]
    return f"{given.by if level is AuditLevel.CHIP else level} {names[number]}"


def identities(given: AuditInput) -> list[str]:
    """Everything that an audit of this population could name."""
    kinds = ((given.by, given.chips), (str(AuditLevel.NODE), given.nodes), (str(AuditLevel.GROUP), given.groups))
    return [f"{kind} {name}" for kind, names in kinds for name in names]


def in_doubt(answer: Mapping[str, Any], inputs: Sequence[AuditInput]) -> set[str]:
    """The identities that have to be measured again: neither named nor cleared."""
    again = answer["measure_again"]
    kinds = {given.by for given in inputs}
    found = {f"{kind} {chip}" for one in again for kind in kinds for chip in one["chips"]}
    return found.union(f"{one['kind']} {one['name']}" for one in again)


def to_json(result: AuditResult, inputs: Sequence[AuditInput], fdr: float, min_loss: float) -> dict[str, Any]:
    """Findings and populations; the ledger's and the reader's parts are added by the command."""
    named = [
        np.array([unit for one in result.findings if one.population == number for unit in one.members], np.int64)
        for number in range(len(inputs))
    ]
    findings = [_finding(one, inputs[one.population], named[one.population]) for one in result.findings]
    for one in findings:
        one["also"] = [
            f"{other['kind']} {other['name']} in {other['population']}"
            for other in findings
            if other["population"] != one["population"] and _concern_each_other(one, other)
        ]
    populations = [_population(found, given) for found, given in zip(result.populations, inputs, strict=True)]
    for number, population in enumerate(populations):
        mine = [one for one in result.findings if one.population == number]
        population["notes"] += _in_common(mine, inputs[number])
    summary = {"fdr": fdr, "min_loss": min_loss, "findings": len(findings), "hypotheses": result.hypotheses,
               "populations": populations}  # fmt: skip
    again = [
        _about(one, given, named[number])
        for number, (found, given) in enumerate(zip(result.populations, inputs, strict=True))
        for one in found.doubtful
    ]
    again.sort(key=lambda one: -one["loss"])
    return {"findings": findings, "measure_again": again, "summary": summary}


def _concern_each_other(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two findings have a chip in common, or one is the node of the other."""
    nodes = ((one["node"], other), (other["node"], one))
    of_node = any(its["kind"] == "node" and its["name"] == node for node, its in nodes)
    return of_node or not set(one["chips"]).isdisjoint(other["chips"])


def _about(one: SlowUnit | DoubtfulUnit, given: AuditInput, named: Any) -> dict[str, Any]:
    """What it is, where, how slow and why, of a finding and of what has to be measured again."""
    members = np.array(one.members, np.int64)
    healthy = np.setdiff1d(np.arange(len(given.chips)), named)
    evidence = compared(given.physical, members, _at_its_place(one, given, healthy))
    kind, _, name = _named(one.level, one.number, given).partition(" ")
    node, slot = _places(one, given)[-1]
    return {
        "kind": kind, "name": name, "node": node or None, "slot": slot or None, "population": given.population.name,
        "loss": round(one.loss, 4), "chips": [given.chips[number] for number in one.members],
        "cause": likely_cause(says(evidence)), "evidence": evidence,
    }  # fmt: skip


def _places(one: SlowUnit | DoubtfulUnit, given: AuditInput) -> Sequence[tuple[str, str]]:
    """The nodes of a chip with the places in them where it was, the last one last."""
    seen = given.seen[one.number] if one.level is AuditLevel.CHIP else ()
    return seen or (("", ""),)


def _finding(one: SlowUnit, given: AuditInput, named: Any) -> dict[str, Any]:
    of_nodes = one.level is AuditLevel.GROUP and not given.population.of_nodes
    below = AuditLevel.NODE if of_nodes else AuditLevel.CHIP
    return _about(one, given, named) | {
        "before": ["/".join(filter(None, place)) for place in _places(one, given)[:-1]],
        "loss_low": round(one.loss_low, 4), "loss_high": round(one.loss_high, 4),
        "p_value": float(f"{one.chance:.3g}"), "adjusted_p_value": float(f"{one.adjusted:.3g}"),
        "measurements": one.measurements, "slow": [_named(below, number, given) for number in one.slow],
        "members": one.judged, "slow_share": None if one.chronic is None else round(one.chronic, 3),
        "slow_since": None if one.since is None else given.runs[one.since],
    }  # fmt: skip


def _at_its_place(one: SlowUnit | DoubtfulUnit, given: AuditInput, healthy: Ints) -> Ints:
    """Healthy chips of the number that a chip has in its node, if they are enough: some places are always hot."""
    place = given.population.place
    if one.level is not AuditLevel.CHIP or place is None or place[one.number] < 0:
        return healthy
    there = healthy[place[healthy] == place[one.number]]
    return there if len(there) >= FEWEST_PARENTS else healthy


def _in_common(findings: Sequence[SlowUnit], given: AuditInput) -> list[str]:
    """Notes on what the named chips, nodes and groups have in common and others do not."""
    population = given.population
    chips, nodes = np.arange(len(given.chips)), population.node
    groups = nodes if population.of_nodes else np.where(nodes >= 0, np.append(population.group, -1)[nodes], -1)
    notes = []
    for level, parent in ((AuditLevel.CHIP, chips), (AuditLevel.NODE, nodes), (AuditLevel.GROUP, groups)):
        mine = [np.array(one.members, np.int64) for one in findings if one.level is level]
        named = np.zeros(len(chips), np.bool_)
        named[[chip for one in findings if one.level is not AuditLevel.CHIP or level is AuditLevel.CHIP
               for chip in one.members]] = True  # fmt: skip
        parents = int(parent.max(initial=-1)) + 1
        others = [members for members in members_of(parent, parents) if len(members) and not named[members].any()]
        labels = {name: its for name, its in given.labels.items() if level is not AuditLevel.GROUP or name != "group"}
        common = in_common(mine, others, labels) if mine and others else []
        if common:
            what = {AuditLevel.CHIP: f"{given.by}s"}.get(level, f"{level}s")
            notes.append(f"what the named {what} have in common: {', '.join(map(str, common))}")
    return notes


def _population(found: PopulationResult, given: AuditInput) -> dict[str, Any]:
    count = found.fit.count[found.fit.count > 0]
    runs = float(np.median(count)) if len(count) else 0.0
    notes = [*given.notes, *found.notes]
    if not found.refused:
        notes += [SINGLE] if count.max(initial=0) == 1 else _few_single(count, given.by)
    if found.other_level:
        rest = np.setdiff1d(np.flatnonzero(found.fit.count > 0), found.other_level)
        mine = [np.array([chip]) for chip in found.other_level]
        labels = {**given.labels, "node": Coded(given.population.node, given.nodes)} if given.nodes else given.labels
        common = in_common(mine, [np.array([chip]) for chip in rest.tolist()], labels)
        if common:
            what = ", ".join(map(str, common))
            notes.append(f"what those at a level of their own have in common: {what}")
        else:
            names = _listed([_named(AuditLevel.CHIP, number, given) for number in found.other_level])
            notes.append(f"at a level of their own are: {names}")
    if found.places:
        which = given.labels["GPU"].names
        names = _listed(
            [
                f"{which[place]} ({_percent(abs(loss))} {'slower' if loss > 0 else 'faster'})"
                for place, loss in found.places
            ]
        )
        notes.append(f"in most nodes some GPUs differ, so each is compared with those of its number: {names}")
    if found.implausible:
        fast = _listed(
            [f"{_named(AuditLevel.CHIP, number, given)} ({_percent(gain)})" for number, gain in found.implausible]
        )
        notes.append(
            f"{len(found.implausible)} so much faster than the others that the value or the model is wrong, "
            f"left out: {fast}"
        )
    if found.apart:
        slow = sorted(found.apart, key=lambda one: -one[2])
        names = _listed([f"{_named(level, number, given)} ({_percent(loss)})" for level, number, loss in slow])
        notes.append(
            f"slower than the others, not named: {names}; faults, slow in some runs only, by chance, or of another "
            "kind that no column tells"
        )
    if found.alone:
        alone = sorted(found.alone, key=lambda one: -one[1])
        names = _listed([f"{_named(AuditLevel.CHIP, number, given)} ({_percent(loss)})" for number, loss in alone])
        notes.append(f"slow in their only value, repeat the run for them: {names}")
    if found.unsteady:
        unsteady = sorted(found.unsteady, key=lambda one: -one[1])
        names = _listed(
            [
                f"{_named(AuditLevel.CHIP, number, given)} (by {_percent(spread)}"
                + (f", {_percent(loss)} slower)" if loss >= 0.01 else ")")
                for number, spread, loss in unsteady
            ]
        )
        notes.append(f"unsteady, single values differ far more than those of others: {names}")
    if found.later:
        later = sorted(found.later, key=lambda one: -one[2].loss)
        names = _listed(
            [
                f"{_named(level, number, given)} ({_percent(-math.expm1(-one.loss))} since run {given.runs[one.run]})"
                for level, number, one in later
            ]
        )
        notes.append(f"slower than before, not named: {names}")
    if found.recovered:
        names = _listed(
            [
                f"{_named(AuditLevel.CHIP, number, given)} (faster by {_percent(math.expm1(-one.loss))} since run "
                f"{given.runs[one.run]})"
                for number, one in found.recovered
            ]
        )
        notes.append(f"slow before, and not any more: {names}")
    return {
        "name": given.population.name, "of": given.by,
        "chips": found.units, "nodes": found.nodes, "groups": found.groups,
        "measurements": int(count.sum()), "runs_of_a_chip": runs, "refused": found.refused or None,
        "better": "lower" if given.lower else "higher",
        "spread": round(found.spread, 5), "noise": None if math.isnan(found.fit.noise) else round(found.fit.noise, 5),
        "run_spread": round(found.fit.run_spread, 5), "run_effects_removed": found.fit.runs > 0, "notes": notes,
    }  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return listed(names[:MOST_NAMES], len(names))


def _few_single(count: Ints, of: str) -> list[str]:
    """What is said where most chips have several measurements, by number of measurements."""
    alone = int((count == 1).sum())
    what = "node" if of == "node" else "chip"
    chips = f"1 {what} has" if alone == 1 else f"{alone} {what}s have"
    return [f"{chips} one measurement, {ALONE}"] if alone else []


def print_table(answer: Mapping[str, Any], console: Console) -> None:
    """What has to be measured again and the findings, then what was judged and what was not."""
    findings, again = answer["findings"], answer["measure_again"]
    if again:
        _print_again(again, console)
    if findings:
        stories = any("ledger" in one for one in findings)
        numbers, rows = ("loss", "95 %", "slow in", "p"), []
        for one in findings[:MOST_ROWS]:
            where = ", ".join(filter(None, (_where(one), one["population"])))
            share = "one run" if one["slow_share"] is None else f"{100 * one['slow_share']:.0f} % of runs"
            share += f" since {one['slow_since']}" if one["slow_since"] else ""
            rows.append((
                plain(f"{one['kind']} {one['name']}"), plain(where), _percent(one["loss"]),
                f"{_percent(one['loss_low'])} to {_percent(one['loss_high'])}", share, f"{one['p_value']:.1g}",
                *([plain(_story(one.get("ledger")))] if stories else []),
            ))  # fmt: skip
        print_rows(console, ("slow", "on", *numbers, *(["ledger"] if stories else [])), rows, numbers)
        for line in _causes(findings[:MOST_ROWS]):
            console.print(plain(line))
        if len(findings) > MOST_ROWS:
            console.print(f"and {len(findings) - MOST_ROWS} more; --json has them all")
    judged = any(not found["refused"] for found in answer["summary"]["populations"])
    if not findings and judged:
        console.print(f"[bold]no {'other ' if again else ''}chip and no node is slower than its like[/]")
    populations = answer["summary"]["populations"]
    often = Counter(note for found in populations for note in found["notes"])
    for found in populations:
        console.print(plain(_sentence(found)))
        for note in found["notes"]:
            if often[note] == 1:
                console.print(f"  {plain(note)}", style="dim")
    for note, times in often.items():
        if times > 1:
            console.print(plain(f"{times} of {len(populations)} populations: {note}"), style="dim")


def _print_again(again: Sequence[Mapping[str, Any]], console: Console) -> None:
    rows = [
        (
            plain(f"{one['kind']} {one['name']}"), plain(", ".join(filter(None, (_where(one), one["population"])))),
            _percent(one["loss"]), plain(one["cause"]),
        )
        for one in again[:MOST_ROWS]
    ]  # fmt: skip
    print_rows(console, ("measure again", "on", "loss", "evidence"), rows, ("loss",))
    console.print(AGAIN)
    if len(again) > MOST_ROWS:
        console.print(f"and {len(again) - MOST_ROWS} more; --json has them all")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _where(one: Mapping[str, Any]) -> str:
    where = "/".join(filter(None, (one["node"], one["slot"])))
    return f"{where} (before: {', '.join(one['before'])})" if one.get("before") else where


def _causes(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines with every cause, the findings that have it and their physical values."""
    by_cause: dict[str, list[str]] = {}
    for one in findings:
        about = [f"{name} {found['value']:g} (usual {found['usual']:g})" for name, found in one["evidence"].items()]
        if len(one["slow"]) < one["members"]:
            about.append(f"{len(one['slow'])} of {one['members']} are slow: {_listed(one['slow'])}")
        about += [f"also {', '.join(one['also'])}"] if one["also"] else []
        name = f"{one['kind']} {one['name']}" + (f" in {one['population']}" if one["also"] else "")
        by_cause.setdefault(one["cause"], []).append(f"{name}: {', '.join(about)}" if about else name)
    if list(by_cause) == [NO_EVIDENCE] and not any(
        one["also"] or len(one["slow"]) < one["members"] for one in findings
    ):
        return [NO_EVIDENCE]
    return [line for cause, names in by_cause.items() for line in (f"{cause}:", *(f"  {name}" for name in names))]


def _story(story: Mapping[str, Any] | None) -> str:
    if not story:
        return ""
    if story["state"] == "new":
        return "new"
    if story["state"] == "still":
        again = f" again, first {story['first'][:10]}" if story["returned"] else ""
        return f"on the list since {story['since'][:10]}{again}"
    repaired = " after a repair" if story["repairs"] else ""
    return f"back{repaired}: named {story['named_before']} times before, cleared {story['cleared'][:10]}"


def _sentence(found: Mapping[str, Any]) -> str:
    name = f"{found['name']}: " if found["name"] else ""
    if found["refused"]:
        return f"{name}not judged: {found['refused']}"
    text = f"{name}{found['chips']} {'nodes' if found['of'] == 'node' else 'chips'}"
    text += f" on {found['nodes']} nodes" if found["nodes"] else ""
    text += f", {found['measurements']} measurements; healthy ones spread by {_percent(found['spread'])}"
    text += f", one measurement by {_percent(found['noise'])}" if found["noise"] is not None else ""
    text += f", runs by {_percent(found['run_spread'])} (removed)" if found["run_effects_removed"] else ""
    return f"{text}; {found['better']} values are better"
