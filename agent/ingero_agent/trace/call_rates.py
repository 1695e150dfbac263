"""Call rates of each process, by the kind of probe that a call costs. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from ingero_agent.trace.counts import CallCount
from ingero_agent.trace.governor import GROUPS, STEP, CallRate, ProbeCost, full_cost
from ingero_agent.trace.probes.table import HOST

SHORTEST_WINDOW: Final = 0.05
"""Seconds of counting below which a rate is too uncertain to use."""

_ByGroup = dict[str, dict[str, CallRate]]


class CallRates:
    """Calls a second by process; a group that is not counted now keeps its last rates."""

    def __init__(self) -> None:
        self._rates: dict[int, _ByGroup] = {}

    def update(
        self,
        counted: Iterable[CallCount],
        on: Mapping[str, float],
        alive: Collection[int],
        single_stepped: Collection[int],
    ) -> None:
        """Add one poll. `on`: seconds for which each group was counted; `single_stepped`: expensive functions."""
        fresh: dict[int, _ByGroup] = {}
        for one in counted:
            function = one.function
            if function.source == HOST:
                continue
            seconds = max(on[function.group], SHORTEST_WINDOW)
            rate = CallRate(one.count / seconds, min(one.cold, one.count) / seconds)
            kinds = fresh.setdefault(one.pid, _nothing())[function.group]
            for kind in (function.price, STEP) if function.number in single_stepped else (function.price,):
                kinds[kind] = kinds.get(kind, CallRate()) + rate
        before, self._rates = self._rates, {}
        for pid in {*fresh, *(pid for pid in before if pid in alive)}:
            new, old = fresh.get(pid) or _nothing(), before.get(pid) or _nothing()
            self._rates[pid] = {group: (new if on[group] > SHORTEST_WINDOW else old)[group] for group in GROUPS}

    def most_expensive(self, costs: Mapping[str, ProbeCost]) -> dict[str, float]:
        """Share of a processor that each group would take if always on, in the process with the highest cost."""
        return max(
            (full_cost(rates, costs) for rates in self._rates.values()), key=lambda cost: sum(cost.values()),
            default=dict.fromkeys(GROUPS, 0.0),
        )  # fmt: skip


def _nothing() -> _ByGroup:
    return {group: {} for group in GROUPS}
