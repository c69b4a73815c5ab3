"""`RecordGraph`: serialized records to batches as they are wanted, as a graph of TensorFlow's own operations. Images
are decoded record by record, on all threads; everything else is parsed by the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recordmill.reader.collating.form import Form
from recordmill.reader.collating.ways import Way
from recordmill.reader.faces.tf_parse import VALID, Tensors, as_it_is
from recordmill.reader.faces.tf_portable import TURN_RECORDS, collater, parser_of
from recordmill.reader.fetching.readable import Fetchable
from recordmill.reader.images.graph import image_decoder
from recordmill.reader.images.options import Images
from recordmill.schemas.feature import Schema

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class RecordGraph:
    """images: a serialized record to its decoded images, by feature; None: there are none. finish: a batch of
    serialized records and of these to x, (x, y) or (x, y, w).
    """

    images: Callable[[Any], Tensors] | None
    finish: Callable[[Any, Tensors], Any]

    @classmethod
    def of(
        cls,
        dataset: Fetchable,
        schema: Schema,
        form: Form,
        ways: Mapping[str, Way],
        images: Mapping[str, Images],
        defaults: Mapping[str, Any],
    ) -> RecordGraph:
        """Raises:
        UsageError: what has no meaning in such a graph.
        """
        others = tuple(feature for feature in schema if feature.name not in images)
        parse = parser_of(dataset, replace(schema, features=others, label=None), defaults) if others else None
        collate = collater(schema, ways)

        def finish(records: Any, decoded: Tensors) -> Any:
            return form.given(collate({**(parse(records) if parse is not None else {}), **decoded}))

        return cls(_decoder(dataset, schema, images, defaults) if images else None, finish)

    def batches(self, records: tf.data.Dataset, rows: int, drop_remainder: bool) -> tf.data.Dataset:
        """Of so many rows, in the order of the records."""
        import tensorflow as tf

        decode = self.images
        if decode is None:
            return records.batch(rows, drop_remainder=drop_remainder).map(
                as_it_is(lambda batch: self.finish(batch, {})), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
            )
        decoded = records.map(
            as_it_is(lambda record: (record, decode(record))), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        batches = decoded.batch(
            rows, drop_remainder=drop_remainder, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return batches.map(as_it_is(self.finish), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def usable(self, records: tf.data.Dataset) -> tf.data.Dataset:
        """What becomes of each record that can be used; TensorFlow's log names the others. What is wrong with the files
        stays an error.
        """
        import tensorflow as tf

        @as_it_is
        def one(record: Any) -> Any:
            alone = self.batches(tf.data.Dataset.from_tensors(record), 1, False)
            return alone.ignore_errors(log_warning=True).unbatch()

        return records.interleave(one, TURN_RECORDS, 1, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _decoder(
    dataset: Fetchable, schema: Schema, images: Mapping[str, Images], defaults: Mapping[str, Any]
) -> Callable[[Any], Tensors]:
    import tensorflow as tf

    features = tuple(feature for feature in schema if feature.name in images)
    own = {name: value for name, value in defaults.items() if name in images}
    parse = parser_of(dataset, replace(schema, features=features, label=None), own)
    decoders = {name: image_decoder(wanted) for name, wanted in images.items()}

    def decode(record: Any) -> Tensors:
        found = {name: tensor[0] for name, tensor in parse(record[tf.newaxis]).items()}
        for name, one in decoders.items():
            found[name] = one(found[name], found.get(name + VALID))
        return found

    return decode
