"""`open` and `Dataset`: data sets and TFRecord files, opened for reading.

Opening reads the manifest and compares the size of each shard with it. Records are read on demand.
Each read checks both CRCs of a record.

This module imports neither apache_beam nor tensorflow.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.arguments import suggest_fields, suggest_keywords
from recordmill.base.errors import DataWarning, UsageError
from recordmill.base.sizes import to_whole_number
from recordmill.options.calls import Values, with_keywords
from recordmill.reader.display import display_html, display_text, make_headline
from recordmill.reader.open_files import OpenFiles
from recordmill.reader.options.data_set import OpenOptions
from recordmill.reader.options.images import Images, parse_image_targets
from recordmill.reader.records import Records
from recordmill.reader.sampling.sampler import derive_random_key, permute_indices
from recordmill.reader.selection import check_features
from recordmill.reader.take import to_map_style
from recordmill.reader.training import Trainable
from recordmill.records.columns.conversions import parse_conversion_steps
from recordmill.records.columns.numpy_arrays import gather_columns, iter_rows
from recordmill.records.columns.predicate import Predicate
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.catalog import Inputs, catalog_inputs, with_store_settings
from recordmill.shards.file_names import describe_missing_shards
from recordmill.storage.files import limit_requests, parse_local_path

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from typing_extensions import Unpack

    from recordmill.reader.options.keywords import OpenKeywords
    from recordmill.reader.statistics import NormalizedBy
    from recordmill.statistics.dataset_statistics import DatasetStatistics

Columns = dict[str, Array | Ragged | Strings]


@suggest_keywords
@with_keywords("open")
def open(
    inputs: Inputs,
    split: str | None = None,
    columns: Sequence[str] | str | None = None,
    **options: Unpack[OpenKeywords],
) -> Dataset:
    """Opens a data set of recordmill or any TFRecord files.

    Opening reads no records. Files without a manifest have no stored schema, so their schema is
    inferred from all records when it is first needed. `to_numpy`, `to_table` and `to_parquet` infer
    it while they decode. A `schema.pbtxt` or a `features.json` of TensorFlow Datasets next to the
    files adds dtypes, shapes and class names, as far as the records agree with them. If such files
    number one class differently, reading is a DataError.

    Args:
        inputs: The output folder of a build, or one or several files, folders or globs. An output
            folder can't be combined with other inputs.
        split: The split to read. If None, all splits are read, in the order of the manifest.
        columns: Names of the features to read, in this order, as a sequence or as text with commas
            between the names. Other features are skipped without being parsed. If None, all
            features are read.
        **options: Further options, as keywords. docs/reference.md lists them.

    Returns:
        The data set.

    Raises:
        UsageError: The inputs do not exist, a split, feature or generation is unknown, or an option
            does not fit the features.
        DataError: A shard is missing, or its size differs from the manifest.

    Examples:
        >>> ds = recordmill.open("shards", split="test", columns=["id", "animal"])
        >>> len(ds), ds.columns
        (1, ['id', 'animal'])
    """
    chosen = Values("open", {"split": split, "columns": columns, **options})[OpenOptions]
    limit_requests(chosen.storage_requests)
    catalog = catalog_inputs(inputs, split, generation=chosen.generation)
    if catalog.missing_shards:
        note = describe_missing_shards(list(catalog.missing_shards))
        warnings.warn(note, DataWarning, stacklevel=2)
    for problem in catalog.length_problems:
        warnings.warn(str(problem), DataWarning, stacklevel=2)
    if chosen.cache is not None or chosen.storage_requests is not None:
        folder = "" if chosen.cache is None else parse_local_path(chosen.cache)
        catalog = with_store_settings(catalog, chosen.storage_requests, folder, chosen.cache_bytes)
        catalog.apply_store_settings()
    open_files = OpenFiles.from_catalog(
        catalog,
        chosen.schema,
        threads=chosen.threads,
        infer_from=chosen.infer_from,
        steps=parse_conversion_steps(
            chosen.decode_raw, chosen.reshape, chosen.pad, ragged=chosen.ragged
        ),
        image_target=parse_image_targets(chosen.decode_images),
        class_names=chosen.class_names,
    )
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    return Dataset(
        Records.from_files(
            open_files, columns, None if chosen.where is None else Predicate(chosen.where)
        )
    )


@suggest_fields
class Dataset(Trainable[Records]):
    """Records in a fixed order, addressed by number.

    A data set is a view: `select`, `rename` and `filter` return other views of the same files and
    copy nothing. It can be pickled, and threads can share it.

    With `where` or `filter` the data set has only the matching records. Reading in order filters
    the records on the way. `len`, access by number, slices and `to_numpy()` need the numbers of the
    matching records. The first of these calls finds the numbers in one pass over the features of
    the condition. It keeps them in memory, with 4 bytes per matching record.

    Attributes:
        records: The records, for reading. Views derive other records from them.

    Examples:
        >>> ds = recordmill.open("shards")
        >>> ds
        <Dataset shards: 10 records, train, test
          id: int64
          size: float32
          tokens: int64 [?]
          animal: int64 (label)>
    """

    @property
    def full_schema(self) -> Schema:
        """All features of the records, under their stored names."""
        return self.records.open_files.schema

    @property
    def schema_notes(self) -> tuple[str, ...]:
        """Names of the files that described the features.

        Such a file is a `schema.pbtxt` or a `features.json` next to files without a manifest.
        """
        return self.records.open_files.notes

    @property
    def columns(self) -> list[str]:
        """Names of the features that are read."""
        return list(self.schema.names)

    @property
    def features(self) -> dict[str, Feature]:
        """The features that are read, by name."""
        return {feature.name: feature for feature in self.schema}

    @property
    def images(self) -> Mapping[str, Images]:
        """Targets of the images that are decoded, by feature name.

        Empty unless the data set was opened with `decode_images`.
        """
        return self.records.images

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in reading order."""
        return self.records.catalog.splits

    @cached_property
    def statistics(self) -> DatasetStatistics:
        """Statistics by split and feature, for example `ds.statistics["train"]["fare"].mean`.

        The build usually has stored them. All records are read if it has stored none, or if this
        view selects records or changes names or values.
        """
        from recordmill.reader.statistics import load_statistics

        return load_statistics(self.records)

    def __contains__(self, name: object) -> bool:
        """Returns whether a feature of this name is read.

        Raises:
            TypeError: `name` is not text.
        """
        if not isinstance(name, str):
            raise TypeError(
                "`in` does not search records, because they have numbers; `name in "
                "ds` looks for a feature"
            )
        return name in self.schema

    def select(self, columns: Sequence[str]) -> Dataset:
        """Returns a view with some features, in the given order.

        Args:
            columns: Names of features of this view.

        Returns:
            The new view. Nothing is copied.

        Raises:
            UsageError: A feature is unknown, or named twice.

        Examples:
            >>> recordmill.open("shards").select(["size", "id"]).columns
            ['size', 'id']
        """
        return Dataset(self.records.select(columns))

    def drop(self, columns: Sequence[str]) -> Dataset:
        """Returns a view without some features.

        Args:
            columns: Names of features of this view.

        Returns:
            The new view. Nothing is copied.

        Raises:
            UsageError: A feature is unknown.

        Examples:
            >>> recordmill.open("shards").drop(["tokens"]).columns
            ['id', 'size', 'animal']
        """
        check_features(columns, self.schema)
        return self.select([name for name in self.schema.names if name not in columns])

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Returns a view with new names for some features.

        Args:
            names: Current name to new name, `{"old": "new"}`.

        Returns:
            The new view. Nothing is copied.

        Raises:
            UsageError: A feature is unknown, or two features would have the same name.

        Examples:
            >>> recordmill.open("shards").rename({"animal": "label"}).columns
            ['id', 'size', 'tokens', 'label']
        """
        return Dataset(self.records.with_names(names))

    def filter(self, what: str | pc.Expression | Sequence[int] | npt.NDArray[Any]) -> Dataset:
        """Returns a view with some of the records, in the same order.

        The records of the new view are numbered from 0.

        Args:
            what: A condition, a mask or record numbers. A condition is an SQL expression or a
                `pyarrow.compute` expression, as in `where` of `open`. It uses the feature names of
                this view and the stored values, and is evaluated on demand. A mask has one bool per
                record. Record numbers may be in any order. A mask and numbers are kept in memory,
                with 4 bytes per selected record.

        Returns:
            The new view. Nothing is copied.

        Raises:
            UsageError: The condition does not fit the features, the mask has another length, or a
                record is named twice.
            IndexError: A record number is out of range.

        Examples:
            >>> ds = recordmill.open("shards")
            >>> ds.filter([0, 2, 4])["id"].tolist(), len(ds.filter(ds["size"] > 3))
            ([7, 3, 6], 3)
        """
        return Dataset(self.records.where(what))

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: str) -> Array | Ragged | Strings: ...
    @overload
    def __getitem__(self, key: list[str]) -> Dataset: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | npt.NDArray[Any]) -> pa.Table: ...
    def __getitem__(
        self, key: Any
    ) -> dict[str, Any] | pa.Table | Array | Ragged | Strings | Dataset:
        """Returns the records or the columns that a key selects.

        In the dict of a record, a scalar is a Python object if it is text, bytes, a bool or a
        64-bit number. Otherwise it is a NumPy scalar. bfloat16 is float32, because NumPy has no
        such type. A tensor or a list is an array. A missing value is None.

        Args:
            key: A record number (negative numbers count from the end), a slice or a list of record
                numbers, a feature name, or a list of feature names.

        Returns:
            A dict for a number, a `pyarrow.Table` for several records, in the order of `key`, an
            array for a feature name, and a `Dataset` for a list of names, as `select` does.

        Raises:
            IndexError: A record number is out of range.
            TypeError: The key has another type.
            UsageError: A feature is unknown.

        Examples:
            >>> ds = recordmill.open("shards")
            >>> ds[0]["id"], ds[2:5].num_rows, ds[[3, 1]].num_rows
            (7, 3, 2)
            >>> ds["size"].shape, ds[["id", "size"]].columns
            ((10,), ['id', 'size'])
        """
        if isinstance(key, str):
            return self.select([key]).to_numpy()[key]
        if isinstance(key, list) and key and all(isinstance(name, str) for name in key):
            return self.select(key)
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return (
                self.to_table(start, stop) if step == 1 else self.take(np.arange(start, stop, step))
            )
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            return self.records.row(int(key))
        return self.take(key)

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records as a `pyarrow.Table`.

        Args:
            records: Number of records. If there are fewer, all are returned. Only as much is read
                as they need.

        Returns:
            A `pyarrow.Table`.

        Examples:
            >>> recordmill.open("shards").head(3)["id"].to_pylist()
            [7, 0, 3]
        """
        return self.records.head(records)

    def take(self, records: Sequence[int] | npt.NDArray[Any]) -> pa.Table:
        """Returns records by number, in the given order.

        Args:
            records: Record numbers in any order, also repeated. Negative numbers count from the
                end.

        Returns:
            A `pyarrow.Table` with one row per number, in the same order.

        Raises:
            IndexError: A number is out of range.
            TypeError: `records` is not a list of numbers.

        Examples:
            >>> recordmill.open("shards").take([0, -1, 0])["id"].to_pylist()
            [7, 5, 7]
        """
        return self.records.take(records)

    def sample(self, records: int = 5, seed: int = 0) -> pa.Table:
        """Draws records at random, without repetition.

        A seed always draws the same records of a data set, in the same order.

        Args:
            records: Number of records. If there are fewer, all are returned.
            seed: Any integer.

        Returns:
            A `pyarrow.Table`.

        Examples:
            >>> recordmill.open("shards").sample(3).num_rows
            3
        """
        ranks = np.arange(min(to_whole_number(records, "records", 0), len(self)))
        return self.take(
            permute_indices(
                ranks,
                len(self),
                derive_random_key(self.fingerprint, "sample", to_whole_number(seed, "seed")),
            )
        )

    def report(self) -> Any:
        """Creates an HTML page about the data set: classes, histograms, sample records and images.

        A data set without stored statistics is read completely.

        Returns:
            A `reader.report.report.Report`. A notebook displays it, and `save(path)` writes it to a
            file.
        """
        return import_module("recordmill.reader.report.report").make_report(self.records)

    def __arrow_c_schema__(self) -> object:
        return to_arrow(self.schema).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Returns the records as an Arrow stream.

        With this method `duckdb.sql("from ds")`, `polars.DataFrame(ds)` and `pyarrow.table(ds)`
        read the data set.
        """
        reader = pa.RecordBatchReader.from_batches(to_arrow(self.schema), self.record_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __getitems__(self, records: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the records with these numbers as dicts.

        The loaders of PyTorch call this once for each batch. The records are read together. With
        PyTorch's default collation, a value that can't become a tensor is an error that names the
        feature.
        """
        batches = self.take(records).combine_chunks().to_batches()
        return to_map_style(row for batch in batches for row in iter_rows(batch, self.schema))

    def to_table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Reads records into one `pyarrow.Table` in memory.

        Args:
            start: Number of the first record. Negative numbers count from the end, as in a slice.
            stop: Number after the last record. None means the end.

        Returns:
            A `pyarrow.Table`.

        Raises:
            DataError: A record is damaged or does not fit the schema.

        Examples:
            >>> recordmill.open("shards").to_table(0, 3)["id"].to_pylist()
            [7, 0, 3]
        """
        # A guessed schema is confirmed only by reading all records.
        if (start, stop) != (0, None):
            return self.records.to_table(start, stop)
        return self.records.in_one_pass(Records.to_table)

    def to_batches(self, batch_rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Reads the records in order, as Arrow record batches.

        Args:
            batch_rows: Number of rows of each batch except the last. If None, batches are returned
                as they are read, each from about 8 MiB of a file.

        Returns:
            An iterator of `pyarrow.RecordBatch`.

        Raises:
            UsageError: `batch_rows` is not a whole number, or below 1.

        Examples:
            >>> [batch.num_rows for batch in recordmill.open("shards").to_batches(4)]
            [4, 4, 2]
        """
        from recordmill.reader.arrays import rebatch

        batches = self.record_batches()
        if batch_rows is None:
            return batches
        return rebatch(batches, to_whole_number(batch_rows, "batch_rows", 1))

    def to_numpy(self, memmap_dir: str | os.PathLike[str] | None = None) -> Columns:
        """Reads all records into one array per feature.

        `recordmill.records.columns.numpy_arrays` describes the array of each type of feature.

        Args:
            memmap_dir: A new or empty local folder. The columns are written there as `.npy` files
                and returned memory-mapped, so they may be larger than the memory. Text is `Strings`
                then, instead of an object array. `open_columns(memmap_dir)` opens them again. If
                None, the columns are in memory.

        Returns:
            The columns by feature name.

        Raises:
            UsageError: The folder contains columns already, or is in a store.
            DataError: A record is damaged or does not fit the schema.

        Examples:
            >>> columns = recordmill.open("shards").to_numpy()
            >>> columns["size"].dtype, columns["tokens"]
            (dtype('float32'), Ragged(10 rows of 1 to 3 items, values int64 [19]))
        """
        if memmap_dir is None:
            return self.records.in_one_pass(
                lambda records: gather_columns(
                    records.record_batches(), records.schema, len(records)
                )
            )
        from recordmill.reader.arrays import write_memory_mapped

        return write_memory_mapped(self.records, memmap_dir)

    def to_pandas(self) -> Any:
        """Reads all records into a `pandas.DataFrame`."""
        return self.to_table().to_pandas()

    def to_polars(self) -> Any:
        """Reads all records into a `polars.DataFrame`."""
        return import_module("polars").DataFrame(self)

    def to_npy(self, folder: str | os.PathLike[str]) -> Columns:
        """Writes all columns as `.npy` files and returns them memory-mapped.

        This is `to_numpy(memmap_dir=folder)`.

        Args:
            folder: A new or empty local folder.

        Returns:
            The columns by feature name.

        Raises:
            UsageError: The folder contains columns already, or is in a store.
        """
        return self.to_numpy(folder)

    def to_parquet(
        self, path: str | os.PathLike[str], *, compression: str = "zstd", overwrite: bool = False
    ) -> Path | str:
        """Writes the records of this view to one Parquet file, in order.

        The file appears under its name only when it is complete. The memory holds one row group at
        a time. `recordmill.read` writes many files in parallel, counts the records and can resume.

        Args:
            path: The file, or an object in a store such as `s3://bucket/view.parquet`. An object is
                first written to a local temporary file.
            compression: "zstd", "snappy", "gzip" or "none", perhaps with a level as in "zstd:9".
            overwrite: If True, an existing file is replaced.

        Returns:
            The path of the file, or the URI of the object.

        Raises:
            UsageError: The file exists already, or the compression is unknown.
            DataError: A record is damaged or does not fit the schema.
        """
        from recordmill.reader.arrays import write_parquet

        return self.records.in_one_pass(
            lambda records: write_parquet(records, path, compression, overwrite)
        )

    def class_weights(self, label: str | None = None) -> dict[Any, float]:
        """Returns weights that give all classes the same total weight.

        The weight of a class is records / (classes * records of the class), as "balanced" in
        scikit-learn. Only the split `train` counts, or all splits if there is no such split.

        Args:
            label: The feature with the classes. None means the label of the data set.

        Returns:
            The weight of each class. Keys are class numbers, as `class_weight` of Keras takes them,
            or texts.

        Raises:
            UsageError: The feature is unknown, or its values are not classes.

        Examples:
            >>> recordmill.open("shards").class_weights()
            {0: 0.9, 1: 1.125}
        """
        from recordmill.reader.statistics import weigh_classes

        return weigh_classes(self, label)

    def normalization(
        self, feature: str | None = None, *, by: NormalizedBy = "moments"
    ) -> dict[str, Any]:
        """Returns keywords for the Keras layer `Normalization`.

        `keras.layers.Normalization(**ds.normalization("fare"))` changes the mean of a feature to 0
        and its variance to 1. The values are the finite numbers of the split `train`, or of all
        splits if there is no such split.

        A feature with vectors of a fixed length, such as `float32 [14]` or lists of them, is
        normalized element by element: `mean` and `variance` are arrays, and `axis` is -1. The
        values of a feature with encoded images are the pixels of each channel, as `decode_images`
        returns them. These pixels are those of the images that were decoded for the statistics.

        Args:
            feature: The feature. If None, the result contains the keywords of each numeric feature,
                by name, except the label and classes.
            by: "quantiles" changes the quantiles at 1 % and at 99 % of each element to -1 and 1.
                Robot policies use this, because outliers have no influence. It is for vectors only.

        Raises:
            UsageError: The feature is unknown, has no numbers, or its numbers are too large. Or
                quantiles of each element are not known.

        Examples:
            >>> recordmill.open("shards").normalization("size")["mean"]
            2.2222222222222223
        """
        from recordmill.reader.statistics import normalize, normalize_all

        if by not in ("moments", "quantiles"):
            raise UsageError(f"by={by!r}: one of moments, quantiles")
        return normalize_all(self, by) if feature is None else normalize(self, feature, by)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields each record as a dict, as `ds[number]` returns it.

        This is meant for inspection. Use `batches` or `to_batches` for many records.
        """
        for batch in self.record_batches():
            yield from iter_rows(batch, self.schema)

    def __repr__(self) -> str:
        return display_text(*self._display_arguments())

    def _repr_html_(self) -> str:
        """Returns the representation in notebooks, with a table of the features.

        No records are read for it.
        """
        return display_html(*self._display_arguments())

    def _display_arguments(self) -> tuple[str, Schema | None]:
        # `repr` must not read files, so only values that are already known are shown.
        files, record_filter = self.records.open_files, self.records.filter
        is_counted = files.catalog.manifest is not None or files.record_files.is_counted
        subset = record_filter.known_matching
        conditions = [str(condition.where.condition) for condition in record_filter.conditions]
        headline = make_headline(
            files.catalog,
            files.num_records if is_counted else None,
            None if subset is None else len(subset),
            conditions + ["they were chosen by number"] * (record_filter.subset is not None),
        )
        return headline, None if files.known_schema is None else self.schema
