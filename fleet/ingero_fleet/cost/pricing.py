"""Computes what the GPUs of every node cost an hour. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ingero_fleet.cost.providers import ProviderMap
from ingero_fleet.score_table import Hardware
from ingero_fleet.tick_snapshot import TickSnapshot
from ingero_kit.gpu_rates import RateTable


@dataclass(frozen=True)
class Prices:
    """Rates, and the provider of every node."""

    table: RateTable
    providers: ProviderMap = field(default_factory=ProviderMap)


@dataclass(frozen=True)
class Priced:
    """By row: cost an hour, GPUs, and how many of them have no rate. `missing` counts those by (provider, model)."""

    hourly: npt.NDArray[np.float64]
    gpus: npt.NDArray[np.int64]
    unpriced: npt.NDArray[np.int64]
    missing: Counter[tuple[str, str]]


def price(snapshot: TickSnapshot, hardware: Sequence[Hardware], prices: Prices) -> Priced:
    """Look up the rate of every row; rows without a living node have any."""
    codes, alive = snapshot.scores.columns["hardware"], snapshot.scores.columns["alive"]
    kinds: dict[tuple[str, str, int], int] = {}

    def kind(item: Hardware, provider: str) -> int:
        return kinds.setdefault((provider, item.model, gpus_of(item)), len(kinds))

    by_code = np.array([kind(item, item.provider or prices.providers.default) for item in hardware], np.int64)
    kind_of_row = by_code[codes]
    if prices.providers.rules or prices.providers.places:
        for row in np.flatnonzero(alive).tolist():
            item = hardware[int(codes[row])]
            kind_of_row[row] = kind(item, prices.providers.find(snapshot.scores.names[row], item.provider))
    found = [prices.table.find(provider, model) for provider, model, _ in kinds]
    nodes = np.bincount(kind_of_row[alive], minlength=len(kinds)).tolist()
    missing: Counter[tuple[str, str]] = Counter()
    for (provider, model, count), rate, living in zip(kinds, found, nodes, strict=True):
        if rate is None and living:
            missing[provider, model] += count * living
    gpus = np.array([count for *_, count in kinds], np.int64)[kind_of_row]
    rates = np.array([math.nan if rate is None else rate for rate in found], np.float64)[kind_of_row]
    known = np.isfinite(rates)
    return Priced(np.where(known, rates * gpus, 0.0), gpus, np.where(known, 0, gpus), missing)


def gpus_of(item: Hardware) -> int:
    """GPUs of a node; 1 when it did not report how many."""
    return max(1, item.gpus)
