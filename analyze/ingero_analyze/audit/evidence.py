"""What clock, power and temperature say about a slow chip: compared with healthy chips of its population. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ingero_detect.audit.audit_tiers import robust_spread
from ingero_detect.grouped import Floats, Ints

DEVIATIONS: Final = 3.0
"""Distance from the median of healthy chips, in their spreads, from which a value is unusual."""

SMALLEST: Final = {"clock": 0.01, "power": 0.03, "temperature": 4.0}
"""Smallest unusual distance: a share of the median, for the temperature in its own unit."""

NO_EVIDENCE: Final = "no physical evidence given"

FEWEST: Final = 5
"""Healthy chips whose values have to be known."""


def compared(physical: Mapping[str, Floats], members: Ints, healthy: Ints) -> dict[str, dict[str, Any]]:
    """By physical value that is known: that of the members, the usual one, and whether it is low, usual or high."""
    found = dict[str, dict[str, Any]]()
    for name, values in physical.items():
        own, usual = values[members], values[healthy]
        own, usual = own[np.isfinite(own)], usual[np.isfinite(usual)]
        if not len(own) or len(usual) < FEWEST:
            continue
        value, median = float(np.median(own)), float(np.median(usual))
        smallest = SMALLEST[name] if name == "temperature" else SMALLEST[name] * median
        least = max(DEVIATIONS * robust_spread(usual), smallest)
        state = "high" if value > median + least else "low" if value < median - least else "usual"
        found[name] = {"value": round(value, 3), "usual": round(median, 3), "state": state}
    return found


def likely_cause(states: Mapping[str, str]) -> str:
    """A sentence on the likely cause, from the states of clock, power and temperature."""
    clock, power, temperature = (states.get(name) for name in ("clock", "power", "temperature"))
    if not states:
        return NO_EVIDENCE
    if temperature == "high" and (clock == "low" or power == "low" or clock is None):
        return "hot: throttled by its temperature, check cooling and airflow"
    if clock == "low" and power == "low":
        return "low clock and low power: a power limit, a locked clock or a weak supply"
    if power == "low" and clock is None:
        return "low power: a power limit, a weak supply, or a chip that waits"
    if clock == "low" and power in ("usual", "high"):
        return "low clock at usual power: this chip needs more power for the same clock, or its clock is limited"
    if clock == "low":
        return "low clock: throttled or limited"
    if power == "low":
        return "low power at usual clock: the chip waits, check host, memory and PCIe"
    if temperature == "high":
        return "hot, though not at a low clock: check cooling"
    given = ", ".join(states)
    if clock is None:
        return f"{given} as usual, no clock given: a low clock, or memory, ECC, PCIe and host"
    return f"{given} as usual: check memory, ECC, PCIe and host"


def says(evidence: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The states alone."""
    return {name: str(found["state"]) for name, found in evidence.items()}
