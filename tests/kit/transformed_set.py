"""A CSV file, a declared transform of it, and the expected results by NumPy.

The file has numbers, text and missing values.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROWS = 3000
SPLITS = "train=0.8,validation=0.2"
DECLARED: dict[str, Any] = {
    "age": "zscore",
    "fare": [{"impute": 0}, "log1p"],
    "miles": "minmax",
    "city": {"vocabulary": {"top_k": 5, "oov_buckets": 2}},
    "age_group": {"from": "age", "bucketize": 4},
    "note": [{"tokenize": {"lower": True}}, {"vocabulary": {"min_count": 2}}],
    "kind": [{"vocabulary": {"top_k": 3, "oov_buckets": 0}}, "one_hot"],
    "id": "keep",
}


def write_csv(path: Path, rows: int = ROWS, seed: int = 7) -> None:
    """Writes columns id, age, fare, miles, city, note, kind and label.

    `fare` and `city` are missing in some rows.
    """
    random = np.random.default_rng(seed)
    lines = ["id,age,fare,miles,city,note,kind,label"]
    for i in range(rows):
        age = int(random.integers(18, 90))
        fare = "" if random.random() < 0.2 else f"{random.gamma(2, 9):.2f}"
        city = "" if random.random() < 0.1 else f"city {int(random.geometric(0.3))}"
        note = " ".join(random.choice(["Good", "bad", "ok", "late"], int(random.integers(1, 4))))
        kind = random.choice(["cash", "card", "none"])
        lines.append(
            f"{i},{age},{fare},{random.normal(5, 2):.3f},{city},{note},{kind},{'yes' if age > 50 else 'no'}"
        )
    path.write_text("\n".join(lines) + "\n")


def zscore(values: npt.NDArray[Any], fitted: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Returns z-scores by the mean and the variance of the fitted values."""
    sample = fitted.astype(np.float64)
    return ((values.astype(np.float64) - sample.mean()) / sample.std()).astype(np.float32)


def words(values: list[bytes | str | None]) -> list[str]:
    """Returns the vocabulary: the most frequent word first.

    Words with equal counts are sorted by their bytes in descending order.
    """
    texts = [
        value if isinstance(value, str) else value.decode() for value in values if value is not None
    ]
    counts = Counter(texts)
    return sorted(counts, key=lambda word: (counts[word], word.encode()), reverse=True)
