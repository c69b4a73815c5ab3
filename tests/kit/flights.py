"""Random rows of flights, with missing numbers and frequent texts."""

import numpy as np
import pandas as pd

ROWS = 3000


def flight_rows(rows: int = ROWS) -> pd.DataFrame:
    random = np.random.default_rng(8)
    return pd.DataFrame(
        {
            "fare": np.where(
                random.random(rows) < 0.1, np.nan, np.round(random.exponential(20, rows), 1)
            ),
            "count": random.integers(-300, 300, rows),
            "time": 1_700_000_000_000_000_000 + random.integers(0, 10**15, rows),
            "carrier": random.choice(["UA", "B6", "EV", "ü"], rows, p=[0.6, 0.2, 0.15, 0.05]),
            "name": [f"name {number}" for number in random.integers(0, 900, rows)],
        }
    )
