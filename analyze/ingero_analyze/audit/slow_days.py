"""Days (or runs) that are slow as a whole: what was measured on one only is compared with the rest of it. Pure.

Where nodes were measured on different days, nothing tells a slow day from slow nodes, and nobody is accused for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ingero_analyze.audit.inputs import MOST_NAMES, AuditInput
from ingero_analyze.audit.report import identity
from ingero_analyze.terminal import listed
from ingero_detect.audit.audit import audit
from ingero_detect.audit.audit_results import AuditResult, PopulationResult, SlowUnit

OF_ONE_DAY: Final = 0.8
"""Share of the chips of a day that are named, from which it may be the day that is slow."""


def audited(inputs: Sequence[AuditInput], fdr: float, min_loss: float) -> tuple[AuditResult, Sequence[AuditInput]]:
    """The audit without what slow days have in common, and the inputs with notes on these days."""
    while True:
        result = audit([given.population for given in inputs], fdr, min_loss)
        found = [
            _without_slow_days([one for one in result.findings if one.population == number], its, given)
            for number, (its, given) in enumerate(zip(result.populations, inputs, strict=True))
        ]
        if all(one is given for one, given in zip(found, inputs, strict=True)):
            return result, inputs
        inputs = found


def _without_slow_days(findings: Sequence[SlowUnit], its: PopulationResult, given: AuditInput) -> AuditInput:
    """The input as if the days were like others of which nearly all chips, and several units, are named."""
    population, notes = given.population, list(given.notes)
    slower = np.zeros(len(given.chips))
    for day in sorted(set(given.only_day) - {""}):
        there = np.array([chip for chip, its_day in enumerate(given.only_day) if its_day == day])
        mine = [one for one in findings if set(there.tolist()).issuperset(one.members)]
        named = {chip for one in mine for chip in one.members}
        level = float(np.nanmedian(its.fit.effect[there])) - its.centre if len(mine) > 1 else 0.0
        if level > 0 and len(named) >= OF_ONE_DAY * len(there):
            slower[there] = level
            names = listed([identity(one, given) for one in mine[:MOST_NAMES]], len(mine))
            notes.append(
                f"{names}: measured on {day} only, when hardly any others were, and all slower, by "
                f"{-100 * np.expm1(-level):.1f} %: the day may be slow, not they, so each is compared with the "
                "others of it; measure them on another day"
            )
    if not slower.any():
        return given
    slowness = population.slowness - slower[population.unit]
    return replace(given, population=replace(population, slowness=slowness), notes=tuple(notes))
