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
    """Look up the rate of every row, including rows without a living node."""
    rates, gpus, missing = _rates(snapshot, hardware, prices)
    known = np.isfinite(rates)
    return Priced(np.where(known, rates * gpus, 0.0), gpus, np.where(known, 0, gpus), missing)


_Rates = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], Counter[tuple[str, str]]]
"""Rate of a GPU by row, NaN where there is none; GPUs by row; GPUs of living nodes without a rate."""


def _rates(snapshot: TickSnapshot, hardware: Sequence[Hardware], prices: Prices) -> _Rates:
    columns = snapshot.scores.columns
    codes, alive = columns["hardware"], columns["alive"]
    if prices.providers.rules or prices.providers.places:
        return _rates_by_rule(snapshot, hardware, prices)
    providers = [item.provider or prices.providers.default for item in hardware]
    known = [prices.table.find(provider, item.model) for provider, item in zip(providers, hardware, strict=True)]
    counts = np.array([gpus_of(item) for item in hardware], np.int64)
    rates = np.array([math.nan if rate is None else rate for rate in known], np.float64)
    nodes = np.bincount(codes[alive], minlength=len(hardware))
    missing: Counter[tuple[str, str]] = Counter()
    for item, provider, rate, count in zip(hardware, providers, known, (nodes * counts).tolist(), strict=True):
        if rate is None and count:
            missing[(provider, item.model)] += count
    return rates[codes], counts[codes], missing


def _rates_by_rule(snapshot: TickSnapshot, hardware: Sequence[Hardware], prices: Prices) -> _Rates:
    columns = snapshot.scores.columns
    rates = np.full(len(columns["hardware"]), np.nan)
    gpus = np.zeros(len(columns["hardware"]), np.int64)
    missing: Counter[tuple[str, str]] = Counter()
    found: dict[tuple[str, str], float | None] = {}
    for row in np.flatnonzero(columns["alive"]).tolist():
        item = hardware[int(columns["hardware"][row])]
        provider = prices.providers.find(snapshot.scores.names[row], item.provider)
        key = (provider, item.model)
        if key not in found:
            found[key] = prices.table.find(provider, item.model)
        gpus[row] = gpus_of(item)
        rate = found[key]
        if rate is None:
            missing[key] += int(gpus[row])
        else:
            rates[row] = rate
    return rates, gpus, missing


def gpus_of(item: Hardware) -> int:
    """GPUs of a node; 1 when it did not report how many."""
    return max(1, item.gpus)
