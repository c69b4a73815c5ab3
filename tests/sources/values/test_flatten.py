"""Structs become columns of their members."""

import pyarrow as pa
import pytest

from recordmill.base.errors import DataError
from recordmill.sources.values.flatten import flatten, flatten_schema


def test_structs_are_flattened() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "a": [1, 2, 3, 4],
            "s": pa.array(
                [{"x": 1, "t": {"y": "p"}}, None, {"x": None, "t": None}, {"x": 4, "t": {"y": "q"}}]
            ),
            "l": pa.array([[{"x": 1}, {"x": 2}], None, [], [{"x": None}]]),
            "ll": pa.array([[[{"x": 1}], []], [], None, [[{"x": 2}]]]),
        }
    )
    expected = {
        "a": [1, 2, 3, 4],
        "s.x": [1, None, None, 4],
        "s.t.y": ["p", None, None, "q"],
        "l.x": [[1, 2], None, [], [None]],
        "ll.x": [[[1], []], [], None, [[2]]],
    }
    assert flatten(batch).to_pydict() == expected
    assert flatten(batch.slice(1, 3)).to_pydict() == {
        name: column[1:] for name, column in expected.items()
    }
    assert flatten_schema(batch.schema).names == list(expected)
    flat_batch = batch.select(["a"])
    assert flatten(flat_batch) is flat_batch
    with pytest.raises(DataError, match=r"two columns are named 's\.x'"):
        flatten(pa.RecordBatch.from_pydict({"s": [{"x": 1}], "s.x": [1]}))
