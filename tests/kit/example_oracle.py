"""Expected contents of Examples, in plain Python and protobuf.

The tests of the encoder compare its output with them.
"""

import pickle
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from recordmill.records.protobuf.message import example_class
from recordmill.schemas.feature import DTYPES, Feature, Schema

Entries = dict[str, tuple[str, list[Any]]]  # name in the map to kind and values

_INT_LIMITS = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)},
    "bool": (0, 1),
    "uint64": (0, 2**63 - 1),
}
_RAW = {"float64": "<d", "uint8": "<B", "uint64": "<Q"}


def _flatten(value: Any, depth: int) -> list[Any]:
    return [value] if depth == 0 else [leaf for item in value for leaf in _flatten(item, depth - 1)]


def arrow_value(feature: Feature, value: Any) -> Any:
    """Returns a value in the form of Arrow's column.

    All fixed dimensions are flattened to one list.
    """

    def merge(item: Any, ragged: int) -> Any:
        return (
            [merge(inner, ragged - 1) for inner in item]
            if ragged
            else _flatten(item, len(feature.inner_shape))
        )

    return merge(value, feature.ragged_rank) if value is not None and feature.inner_shape else value


def entries(feature: Feature, value: Any) -> Entries:
    """Returns the entries of the Example's map for one value.

    Args:
        value: A scalar, or nested lists as deep as the shape. None has no entry.
    """
    if value is None:
        return {}
    leaves = _flatten(value, len(feature.shape))
    leaves = [
        leaf.encode() if isinstance(leaf, str) else int(leaf) if isinstance(leaf, bool) else leaf
        for leaf in leaves
    ]
    values = (
        [b"".join(struct.pack(_RAW[feature.dtype], leaf) for leaf in leaves)]
        if feature.raw
        else leaves
    )
    if feature.ragged_rank < 2:
        return {feature.name: (feature.kind, values)}
    result = {f"{feature.name}/ragged_flat_values": (feature.kind, values)}
    for i in range(feature.ragged_rank - 1):
        result[f"{feature.name}/ragged_row_lengths_{i}"] = (
            "int64",
            [len(item) for item in _flatten(value, i + 1)],
        )
    return result


def row_entries(schema: Schema, row: Mapping[str, Any]) -> Entries:
    return {
        name: entry
        for feature in schema
        for name, entry in entries(feature, row[feature.name]).items()
    }


def serialize(examples: Iterable[Entries]) -> list[bytes]:
    """Serializes examples deterministically, with this process's protobuf."""
    cls = example_class()
    result = []
    for example_entries in examples:
        example = cls()
        example.features.SetInParent()
        for name, (kind, values) in example_entries.items():
            value_list = getattr(example.features.feature[name], f"{kind}_list")
            value_list.SetInParent()
            value_list.value.extend(values)
        result.append(example.SerializeToString(deterministic=True))
    return result


def parse(data: bytes) -> Entries:
    """Returns the entries that protobuf reads from an Example."""
    features = example_class().FromString(data).features.feature
    result: Entries = {}
    for name, feature in features.items():
        field = feature.WhichOneof("kind")
        result[name] = (field.removesuffix("_list"), list(getattr(feature, field).value))
    return result


class PurePython:
    """Serializes with protobuf's pure Python implementation, in a child process.

    That implementation sorts names by their bytes. The process lives as long as the `with` block.
    """

    def __enter__(self) -> "PurePython":
        import os

        environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def serialize(self, examples: Sequence[Entries]) -> list[bytes]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(list(examples), self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)  # type: ignore[no-any-return]


def _serve() -> None:
    from google.protobuf.internal import api_implementation

    assert api_implementation.Type() == "python"
    while True:
        try:
            examples = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(serialize(examples), sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _leaves(dtype: str) -> st.SearchStrategy[Any]:
    if dtype in _INT_LIMITS:
        integers = st.integers(*_INT_LIMITS[dtype])
        return integers.map(bool) if dtype == "bool" else integers
    if dtype == "string":
        return st.text(max_size=20)
    if dtype == "bytes":
        return st.binary(max_size=300)
    width = {"float16": 16, "float64": 64}.get(dtype, 32)
    floats = st.floats(width=width, allow_nan=False)
    return floats.map(np.float16) if dtype == "float16" else floats


def _values(feature: Feature) -> st.SearchStrategy[Any]:
    values = _leaves(feature.dtype)
    for size in reversed(feature.shape):
        values = (
            st.lists(values, max_size=5)
            if size is None
            else st.lists(values, min_size=size, max_size=size)
        )
    return values if feature.required else st.none() | values


_NAMES = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12
) | st.text("abé", min_size=100, max_size=140)
_SHAPES = st.sampled_from(
    [
        (),
        (),
        (1,),
        (3,),
        (2, 2),
        (0,),
        (None,),
        (None,),
        (None, 2),
        (None, None),
        (None, None, 3),
        (None, None, None),
    ]
)


@st.composite
def schemas_and_rows(draw: st.DrawFn) -> tuple[Schema, list[dict[str, Any]]]:
    """Draws a schema and rows of it, as `pa.RecordBatch.from_pylist` takes them."""
    names = draw(st.lists(_NAMES, unique=True, min_size=1, max_size=6))
    dtypes = [*DTYPES, "timestamp[us]"]
    features = []
    for name in names:
        dtype = draw(st.sampled_from(dtypes))
        features.append(
            Feature(
                name,
                "int64" if dtype.startswith("timestamp") else dtype,
                draw(_SHAPES),
                draw(st.booleans()),
            )
        )
    schema = Schema(tuple(features))
    count = draw(st.integers(0, 5))
    return schema, [
        {feature.name: draw(_values(feature)) for feature in features} for _ in range(count)
    ]


if __name__ == "__main__":
    _serve()
