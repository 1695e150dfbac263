"""Medians of many groups and rows are those that a loop over them would find."""

import numpy as np
import pytest

from ingero_detect.grouped import row_medians


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (7, 5), (20, 64), (4, 0)])
def test_medians_of_rows_leave_out_nan(shape: tuple[int, int], missing: float) -> None:
    random = np.random.default_rng(shape[0] * 100 + shape[1])
    table = random.normal(size=shape)
    table[random.random(shape) < missing] = np.nan
    table[random.random(shape) < 0.1] = np.inf

    found = row_medians(table.T)

    expected = [np.median(column[~np.isnan(column)]) if (column == column).any() else np.nan for column in table.T]
    np.testing.assert_array_equal(found, np.array(expected, np.float64))
