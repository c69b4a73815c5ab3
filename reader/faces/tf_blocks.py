"""Many steps at once as flat arrays (a block), for `tf_steps` to cut the batches out of.

TensorFlow takes about a thousand elements a second from Python, whatever their size: so it gets blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.reader.collating.course import Lot
from recordmill.reader.collating.form import check_classes, check_dense, step_lengths
from recordmill.reader.collating.packing import packed_rows, segments
from recordmill.reader.collating.padding import padded_flat
from recordmill.reader.collating.ways import Bucketed, OneHot, Packed, Padded, Way
from recordmill.reader.images.options import Images
from recordmill.records.columns.parts import Parts, is_bytes, numpy_dtype, put_together, take_apart
from recordmill.records.columns.ragged import Ragged, Splits
from recordmill.schemas.feature import Feature, Schema

SIZE = "size"  # [2]: steps of the block, rows of each of them
Arrays = dict[str, Any]


def decoded_schema(schema: Schema, images: Mapping[str, Images], defaults: Mapping[str, Any]) -> Schema:
    """The schema of what blocks hold: images are tensors, which only lack where nothing stands for them."""
    features = tuple(
        Feature(f.name, images[f.name].numpy_dtype.name, images[f.name].shape, f.required or f.name in defaults)
        if f.name in images
        else f
        for f in schema
    )
    return replace(schema, features=features)


@dataclass(frozen=True)
class Sent:
    """A feature as it goes over. at: its number. binned: it is a list per packed row."""

    at: int
    feature: Feature
    way: Way | None
    binned: bool

    @property
    def lists(self) -> int:
        """How many variable dimensions go over as such."""
        if isinstance(self.way, Packed) or self.padded:
            return 0
        return self.feature.ragged_rank + self.binned

    @property
    def padded(self) -> bool:
        """Whether it is padded before it goes over; text and nested lists are in the graph."""
        ways = isinstance(self.way, Padded | Bucketed) or self.way == "dense"
        return ways and self.feature.ragged_rank == 1 and not is_bytes(self.feature)

    @property
    def one_length(self) -> int | None:
        """The length that all of its rows are padded to, in every step."""
        if isinstance(self.way, Packed) or (isinstance(self.way, Padded) and self.padded):
            return self.way.length
        return None

    @property
    def by_step(self) -> bool:
        """Whether each step's part is cut out by itself."""
        return self.lists > 0 or (self.padded and self.one_length is None)

    @property
    def has_valid(self) -> bool:
        return not self.feature.required and not self.feature.ragged_rank and not isinstance(self.way, OneHot)

    def key(self, what: str) -> str:
        """Of one of its arrays in a block."""
        return f"{self.at}/{what}"


def sent_features(schema: Schema, ways: Mapping[str, Way]) -> list[Sent]:
    """How each feature goes over."""
    packed = any(isinstance(way, Packed) for way in ways.values())
    return [
        Sent(at, feature, ways.get(feature.name), packed and not isinstance(ways.get(feature.name), Packed))
        for at, feature in enumerate(schema)
    ]


def blocks_of(lot: Lot, sent: list[Sent]) -> list[Arrays]:
    """The flat arrays of each feature. Steps of a block have equally many rows, so a shorter last one is a block of its
    own.

    Raises:
        DataError: a list that should be dense is not, or a number is no class.
    """
    return [_block(part, sent) for part in _of_one_size(lot)]


def _of_one_size(lot: Lot) -> list[Lot]:
    edges = lot.rows.edges
    sizes = np.diff(edges)
    if len(sizes) < 2 or sizes[-1] == sizes[0]:
        return [lot]
    cut = int(edges[-2])
    lengths = (None, None) if lot.lengths is None else (lot.lengths[:-1], lot.lengths[-1:])
    first = replace(lot.rows, batch=lot.rows.batch.slice(0, cut), edges=edges[:-1])
    last = replace(lot.rows, batch=lot.rows.batch.slice(cut), edges=edges[-2:] - cut)
    images = [{name: array[part] for name, array in lot.images.items()} for part in (slice(cut), slice(cut, None))]
    return [Lot(first, lengths[0], images=images[0]), Lot(last, lengths[1], images=images[1])]


def _block(lot: Lot, sent: list[Sent]) -> Arrays:
    edges = lot.rows.edges
    steps = len(edges) - 1
    block: Arrays = {SIZE: np.array([steps, int(edges[-1]) // steps], np.int64)}
    for one in sent:
        column = lot.rows.batch.column(one.at)
        if one.feature.name in lot.images:
            arrays = _decoded(one, column, lot)
        else:
            arrays = _arrays(one, take_apart(column, one.feature), lot)
        for what, array in arrays.items():
            block[one.key(what)] = array
    return block


def _decoded(one: Sent, column: pa.Array, lot: Lot) -> Arrays:
    made: Arrays = {"values": lot.images[one.feature.name]}
    return {**made, "valid": column.is_valid().to_numpy(zero_copy_only=False)} if one.has_valid else made


def _arrays(one: Sent, parts: Parts, lot: Lot) -> Arrays:
    if isinstance(one.way, Packed):
        return _packed(one.way, Ragged(parts.values, parts.splits[0]), lot)
    if one.padded:
        return _padded(one, Ragged(parts.values, parts.splits[0]), lot)
    if isinstance(one.way, OneHot):
        column = put_together(parts, one.feature)
        assert isinstance(column, np.ndarray)
        check_classes(one.feature.name, column, one.way)
        return {"values": np.ma.filled(np.ma.asarray(column, np.int64), -1)}
    values, splits = parts.values, list(parts.splits)
    if is_bytes(one.feature):
        # One text with all texts: an object array of them would cost TensorFlow a Python object for each.
        made: Arrays = {"values": np.array(values.tobytes(), object), "offsets": splits.pop()}
    else:
        made = {"values": values.view(np.int64) if one.feature.timestamp else values}
    if one.binned:
        assert lot.bins is not None
        splits = [lot.bins, *splits]
    elif one.way is not None and one.way != "ragged":
        made |= _told_lengths(one, np.diff(splits[0]), lot)
    made |= {f"splits{level}": offsets for level, offsets in enumerate(splits)}
    return {**made, "valid": parts.valid} if one.has_valid else made


def _packed(way: Packed, records: Ragged, lot: Lot) -> Arrays:
    assert lot.bins is not None
    edges = lot.rows.edges
    rows = packed_rows(records, lot.bins)
    flat, _ = padded_flat(rows, edges, np.full(len(edges) - 1, way.length, np.int64), way.value)
    numbers, positions = segments(records, lot.bins, way.length)
    return {"values": flat.reshape(-1, way.length, *flat.shape[1:]), "segment": numbers, "position": positions}


def _padded(one: Sent, column: Ragged, lot: Lot) -> Arrays:
    told = _told_lengths(one, column.lengths, lot)
    flat, starts = padded_flat(column, lot.rows.edges, told["steps"], getattr(one.way, "value", 0))
    if one.feature.timestamp:
        flat = flat.view(np.int64)
    if one.one_length is not None:
        flat = flat.reshape(-1, one.one_length, *flat.shape[1:])
    return {"values": flat, "starts": starts, **told}


def _told_lengths(one: Sent, lengths: Splits, lot: Lot) -> Arrays:
    """ "length": the items of each row; "steps": what each step is padded to."""
    if isinstance(one.way, Padded | Bucketed):
        return {"length": lengths, "steps": step_lengths(lengths, lot, one.way)}
    check_dense(one.feature.name, lengths, lot.rows.edges)
    return {"steps": lengths[lot.rows.edges[:-1]]}


def block_spec(sent: list[Sent]) -> Arrays:
    """The tf.TensorSpec of each array of a block."""
    import tensorflow as tf

    spec = {SIZE: tf.TensorSpec([2], tf.int64)}
    for one in sent:
        feature = one.feature
        if is_bytes(feature):
            spec[one.key("values")] = tf.TensorSpec([], tf.string)
        else:
            whole = feature.timestamp or isinstance(one.way, OneHot)
            dtype = tf.int64 if whole else tf.as_dtype(numpy_dtype(feature))
            inner = [one.one_length, *feature.inner_shape] if one.one_length is not None else feature.inner_shape
            spec[one.key("values")] = tf.TensorSpec([None, *inner], dtype)
        names: list[str] = [*["offsets"] * is_bytes(feature), *(f"splits{level}" for level in range(one.lists))]
        if isinstance(one.way, Packed):
            for what in ("segment", "position"):
                spec[one.key(what)] = tf.TensorSpec([None, one.way.length], tf.int32)
        elif one.way is not None and not isinstance(one.way, OneHot):
            names += ["steps"] + ["starts"] * one.padded + ["length"] * (one.way != "dense")
        spec |= {one.key(name): tf.TensorSpec([None], tf.int64) for name in names}
        if one.has_valid:
            spec[one.key("valid")] = tf.TensorSpec([None], tf.bool)
    return spec
