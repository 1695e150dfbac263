"""How much slower chips are by their place in the node, such as those that the air reaches last. Pure.

What all nodes share is no fault of a chip: it is compared with those at its place.
"""

from typing import Final

import numpy as np

from ingero_detect.audit.audit_tiers import FEWEST_UNITS, SMALLEST_SPREAD, robust_spread
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median

EVIDENT: Final = 4.5
"""Standard errors by which one of up to a hundred places differs by chance in one of a thousand fleets."""

QUARTERS: Final = (0.25, 0.5, 0.75)
SHARED: Final = 0.5
"""Quantiles of the chips at a place that all have to differ, by this share of what the median does at least."""

ERROR: Final = float(np.sqrt(np.pi / 2))
"""Standard error of the median of many normal values relative to that of their mean."""


def place_levels(effect: Floats, usable: Bools, node: Ints, place: Ints) -> Floats:
    """By place how much slower (logarithmic) its chips are than those of the median place.

    Chips are compared within their nodes. All are 0 where no place evidently differs, and so are those of few chips
    and those that only half of the nodes have: these are faults.
    """
    found = np.zeros(int(place.max(initial=-1)) + 1)
    chips = np.flatnonzero(usable & (node >= 0) & (place >= 0))
    its, of = place[chips], node[chips]
    enough = np.flatnonzero(np.bincount(its, minlength=len(found)) >= FEWEST_UNITS)
    if len(enough) < 2:
        return found
    apart = effect[chips] - grouped_median(effect[chips], of, int(of.max()) + 1)[1][of]
    at = [apart[its == one] for one in enough.tolist()]
    spread = max(float(np.median([robust_spread(values) for values in at])), SMALLEST_SPREAD)
    quantiles = np.array([np.quantile(values, QUARTERS) for values in at])
    quantiles -= np.median(quantiles, axis=0)
    level = quantiles[:, 1]
    shared = (quantiles * np.sign(level)[:, None]).min(axis=1) >= SHARED * np.abs(level)
    level = np.where(shared, level, 0.0)
    if (np.abs(level) * np.sqrt([len(values) for values in at])).max() > EVIDENT * ERROR * spread:
        found[enough] = level
    return found
