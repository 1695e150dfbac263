"""Chances of many hypotheses, adjusted so that a share of what is named is wrong. Pure."""

import numpy as np

from ingero_detect.grouped import Floats


def adjusted_chances(chances: Floats) -> Floats:
    """Benjamini and Hochberg's adjusted p-values."""
    order = np.argsort(chances)
    ranked = chances[order] * len(chances) / np.arange(1, len(chances) + 1)
    found = np.empty(len(chances))
    found[order] = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1.0)
    return found
