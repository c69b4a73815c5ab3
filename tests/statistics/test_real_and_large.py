"""Statistics of real tables against pandas."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recordmill
from recordmill.statistics.dataset_statistics import FeatureStatistics

pytestmark = pytest.mark.sweep


def assert_numbers(one: FeatureStatistics, column: pd.Series) -> None:
    """The figures are those of the column's values, whose sums NumPy makes in 80 bits."""
    values = column.to_numpy()
    assert one.present == len(values)
    assert (one.min, one.max, one.zeros) == (values.min(), values.max(), (values == 0).sum())
    wide = values.astype(np.longdouble)
    assert one.mean == pytest.approx(float(wide.mean()), rel=1e-12, abs=1e-15)
    assert one.std_dev == pytest.approx(float(wide.std()), rel=1e-12)
    assert one.distinct is not None
    assert one.distinct_error is not None
    assert abs(one.distinct - column.nunique()) <= 4 * one.distinct_error * column.nunique()
    for number, value in enumerate(one.quantiles):
        error = one.quantile_error or 0
        assert error <= 0.005
        assert np.mean(values < value) - error <= number / 10 + 1e-9
        assert np.mean(values <= value) + error >= number / 10 - 1e-9


@pytest.mark.parametrize("name", ["flights", "weather", "planes", "airports"])
def test_real_tables_are_what_pandas_finds(name: str, shared_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("apache_beam", reason="building needs Apache Beam")
    recordmill.build(shared_data / "csv" / "nycflights13" / f"{name}.csv", tmp_path / "out")
    dataset = recordmill.open(tmp_path / "out")
    rows = dataset.to_table().to_pandas(timestamp_as_object=False)
    (features,) = dataset.statistics.values()
    seen = set()
    for feature, one in features.items():
        column = rows[feature].dropna()
        assert (one.present, one.missing) == (len(column), len(rows) - len(column))
        seen.add(one.type)
        if one.type == "STRING":
            counts = column.value_counts()
            assert one.distinct is not None
            assert abs(one.distinct - len(counts)) <= 4 * (one.distinct_error or 0) * len(counts)
            if one.top_values_are_exact:
                assert all(counts[value] == count for value, count in one.top_values.items())
                assert max(counts) == next(iter(one.top_values.values()))
        elif pd.api.types.is_numeric_dtype(column) and one.present:
            assert_numbers(one, column)
    assert {"INT", "STRING"} <= seen
