"""Statistics of a data set, from a `DatasetFeatureStatisticsList` message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.base import html
from recordmill.base.arguments import suggest_fields
from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import available_names, option
from recordmill.base.tables import table_lines
from recordmill.schemas.feature import Schema
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.feature_statistics import (
    COLUMNS,
    ELEMENT_COLUMNS,
    MAX_SHOWN_ELEMENTS,
    UNBROKEN_COLUMNS,
    FeatureStatistics,
    feature_name,
)
from recordmill.statistics.protobuf import to_bytes, to_proto


@suggest_fields
class DatasetStatistics(Mapping[str, Mapping[str, FeatureStatistics]]):
    """Statistics by split and feature, as in `statistics["train"]["fare"].mean`.

    Args:
        proto: A `DatasetFeatureStatisticsList` message.
        schema: The schema, or None. If it is passed, tables show class names instead of class
            numbers, and timestamps as times.

    >>> DatasetStatistics.from_bytes(b"")
    <statistics of 0 records>
    """

    def __init__(self, proto: Any, schema: Schema | None = None) -> None:
        self._proto, self._schema = proto, schema

    @classmethod
    def from_bytes(
        cls, data: bytes, source: str = "statistics.pb", schema: Schema | None = None
    ) -> DatasetStatistics:
        """Parses the content of a statistics file.

        Args:
            data: The content.
            source: Path of the file, for messages.
            schema: See the class.

        Raises:
            DataError: The content is not a `DatasetFeatureStatisticsList`.
        """
        try:
            return cls(statistics_pb2.DatasetFeatureStatisticsList.FromString(data), schema)
        except DecodeError:
            raise DataError(
                "is not a DatasetFeatureStatisticsList of TensorFlow Metadata", source=source
            ) from None

    @classmethod
    def from_sketch(cls, sketch: DatasetSketch) -> DatasetStatistics:
        """Computes the statistics of a sketch."""
        return cls(to_proto(sketch), sketch.schema)

    def to_proto(self) -> Any:
        """Returns the `DatasetFeatureStatisticsList`, for `tensorflow_data_validation`."""
        return self._proto

    def to_bytes(self) -> bytes:
        """Returns the content of a statistics file. Equal statistics become equal bytes."""
        return to_bytes(self._proto)

    @cached_property
    def _splits(self) -> dict[str, dict[str, FeatureStatistics]]:
        schema = self._schema
        return {
            dataset.name: {
                (name := feature_name(proto)): FeatureStatistics.from_proto(
                    proto, schema[name] if schema is not None and name in schema else None
                )
                for proto in dataset.features
            }
            for dataset in self._proto.datasets
        }

    @property
    def records(self) -> dict[str, int]:
        """Number of records of each split, by name."""
        return {dataset.name: int(dataset.num_examples) for dataset in self._proto.datasets}

    def select(
        self, splits: Sequence[str], features: Sequence[str] | None = None
    ) -> DatasetStatistics:
        """Returns the statistics of some splits and features.

        Args:
            splits: Names of the splits. Unknown names are ignored.
            features: Names of the features, in the order of the result. If None, all are kept.

        Raises:
            UsageError: A feature does not exist.
        """
        proto = statistics_pb2.DatasetFeatureStatisticsList()
        proto.datasets.extend(dataset for dataset in self._proto.datasets if dataset.name in splits)
        for dataset in proto.datasets if features is not None else ():
            messages = {feature_name(proto): proto for proto in list(dataset.features)}
            del dataset.features[:]
            for name in features or ():
                if name not in messages:
                    raise UsageError(f"no feature {name!r}; {available_names(name, messages)}")
                dataset.features.append(messages[name])
        return DatasetStatistics(proto, self._schema)

    def select_checked(
        self, split: str | None, columns: Sequence[str] | str | None
    ) -> DatasetStatistics:
        """Returns the statistics of one split and some features, for command-line options.

        Args:
            split: Name of the split. None means all splits.
            columns: Names of the features, as a sequence or as a text with commas. None means all.

        Raises:
            UsageError: The split or a feature does not exist.
        """
        if split is not None and split not in self:
            raise UsageError(
                "{split}: there are {itself}", split=option("split", split), itself=", ".join(self)
            )
        names = (
            [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns
        )
        return self.select(list(self) if split is None else [split], names)

    def __getitem__(self, split: str) -> Mapping[str, FeatureStatistics]:
        return self._splits[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def to_json(self) -> dict[str, Any]:
        """Returns all figures by split, in the form that `--json` prints."""
        return {
            split: {
                "records": self.records[split],
                "features": [feature.to_json() for feature in features.values()],
            }
            for split, features in self.items()
        }

    def summary(self) -> dict[str, Any]:
        """Returns the figures that a manifest contains, by split and feature."""
        return {
            split: {name: feature.summary() for name, feature in features.items()}
            for split, features in self.items()
        }

    def lines(self) -> Iterator[str]:
        """Yields the lines of up to three tables for each split.

        The first table has the figures of each feature. The second one has the most frequent
        values. The third one has the figures of each element of small arrays.
        """
        for split_index, (split, features) in enumerate(self.items()):
            yield from [""] * (split_index > 0)
            yield f"{split}: {self.records[split]:,} records"
            rows = self._rows(features)
            yield from table_lines(COLUMNS[:-1], [row[:-1] for row in rows], UNBROKEN_COLUMNS)
            if frequent := [(row[0], row[-1]) for row in rows if row[-1]]:
                yield ""
                yield from table_lines((COLUMNS[0], COLUMNS[-1]), frequent)
            yield from _element_lines(features)

    def _rows(self, features: Mapping[str, FeatureStatistics]) -> list[tuple[str, ...]]:
        schema = self._schema
        return [
            feature.row(schema[name] if schema is not None and name in schema else None)
            for name, feature in features.items()
        ]

    def __repr__(self) -> str:
        if not self:
            return "<statistics of 0 records>"
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        parts = []
        for split, features in self.items():
            of_split = [html.table(list(COLUMNS), self._rows(features))]
            parts.append(html.section(f"{split}: {self.records[split]:,} records", *of_split))
        return html.section("statistics", *parts)


def _element_lines(features: Mapping[str, FeatureStatistics]) -> Iterator[str]:
    """Yields the lines of the table of elements. There are none without small arrays."""
    small = {
        name: feature.elements
        for name, feature in features.items()
        if feature.elements is not None and feature.elements.finite.size <= MAX_SHOWN_ELEMENTS
    }
    if small:
        yield ""
        rows = [row for name, elements in small.items() for row in elements.rows(name)]
        yield from table_lines(ELEMENT_COLUMNS, rows, ELEMENT_COLUMNS[1:])
