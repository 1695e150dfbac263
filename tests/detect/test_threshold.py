"""The published rule over arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_detect.threshold import cohort_statistics, smooth


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1)), max_size=60))
def test_every_cohort_has_the_median_and_deviation_of_its_own_scores(rows: list[tuple[int, float]]) -> None:
    cohorts = np.array([cohort for cohort, _ in rows], np.int64)
    scores = np.array([score for _, score in rows], np.float64)

    got = cohort_statistics(scores, cohorts, 5)

    for cohort in range(5):
        own = scores[cohorts == cohort]
        assert got.count[cohort] == len(own)
        if len(own):
            assert got.median[cohort] == pytest.approx(np.median(own), rel=1e-10)
            assert got.mad[cohort] == pytest.approx(np.median(np.abs(own - np.median(own))), rel=1e-9, abs=1e-10)
        else:
            assert np.isnan(got.median[cohort])


def test_a_gap_keeps_the_average_and_a_start_takes_the_value() -> None:
    previous, raw = np.array([0.85, np.nan, 0.8, np.nan]), np.array([np.nan, 0.7, 0.9, np.nan])

    np.testing.assert_allclose(smooth(previous, raw, 0.5), [0.85, 0.7, 0.85, np.nan])
