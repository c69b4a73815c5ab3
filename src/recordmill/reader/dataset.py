"""`Dataset`: the records of a data set, or of any TFRecord files, as tables, arrays, NumPy batches, tf.data and for
PyTorch; `open` makes one.

Opening reads the manifest and looks at each shard's size; records are read, and both their CRCs checked, when they are
asked for. Neither apache_beam nor tensorflow is imported here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import parse_size, to_whole_number
from recordmill.reader.display import display_html, display_text, make_headline
from recordmill.reader.options.images import ImageSpec, parse_image_targets
from recordmill.reader.sampling.sampler import key_of, permuted
from recordmill.reader.scanner import Scanner
from recordmill.reader.statistics import StatisticsMixin
from recordmill.reader.take import (
    ParsePlan,
    make_parse_plan,
    read_row,
    resolve_record_numbers,
    take_rows,
)
from recordmill.reader.training import Trainable
from recordmill.reader.view import View
from recordmill.records.columns.conversions import conversion_steps
from recordmill.records.columns.numpy_arrays import gather_columns, rows_of
from recordmill.records.columns.predicate import Predicate
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.records.inference.confirm import Unconfirmed
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import Inputs, catalog_inputs, with_store_settings
from recordmill.shards.loading.infer_schema import guess_schema
from recordmill.shards.loading.sample import Sample
from recordmill.shards.loading.schema_hints import load_schema
from recordmill.storage.files import limit_requests, parse_local_path

if TYPE_CHECKING:
    import pyarrow.compute as pc

_DEFAULT_CACHE_BYTES = "10GiB"
Columns = dict[str, Array | Ragged | Strings]
_Result = TypeVar("_Result")


def open(
    inputs: Inputs,
    split: str | None = None,
    columns: Sequence[str] | str | None = None,
    *,
    schema: Schema | str | os.PathLike[str] | None = None,
    threads: int | None = None,
    infer_from: str | int | None = None,
    where: str | pc.Expression | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str = _DEFAULT_CACHE_BYTES,
    storage_requests: int | None = None,
    decode_raw: Mapping[str, str] | Sequence[str] | str | None = None,
    reshape: Mapping[str, str | Sequence[int]] | Sequence[str] | str | None = None,
    pad: Mapping[str, str] | Sequence[str] | str | None = None,
    ragged: Sequence[str] | str | None = None,
    decode_images: ImageSpec | None = None,
    class_names: bool = False,
) -> Dataset:
    """Opens a data set of recordmill's, or any TFRecord files.

    Args:
        inputs: OUT of a build, or files, folders, globs, one or several.
        split: only this split; None: all, in the manifest's order.
        columns: only these features, in this order; the others are skipped, not parsed. A text is names with commas
            between them.
        schema: of foreign files, or the schema.pbtxt that holds it, if it is known; otherwise it is inferred over all
            their records when it is first needed, by `to_numpy`, `to_table` and `to_parquet` while they decode. A
            `schema.pbtxt` or a `features.json` of TensorFlow Datasets beside the files then gives true dtypes, shapes
            and class names where the records agree.
        threads: how many read and decode; None or 0: one per core.
        infer_from: infer over so many records only, the first ones of each file, or over so many whole files
            (`"20files"`). A later record that the schema does not fit is an error when it is read.
        where: only the records for which this holds: an SQL condition on the features as they are stored, which
            DuckDB evaluates, or a `pyarrow.compute` expression; also on features that `columns` leaves out. The data
            set then has these records and no others, numbered from 0.
        cache: a folder of this machine for blocks that were read from a store, checked by their CRC, so that they
            need no request again; processes may share it. Files of this machine are not cached.
        cache_bytes: at most so much of them, as bytes or a size such as "10GiB".
        storage_requests: how many requests to stores this process has under way at once; None: as before, 64 at first.
        decode_raw: bytes that are an array's memory are that array, `{"depth": "float32[256,256]"}` or
            `"depth=float32[256,256]"` as `read` takes it: `"float32"` a number, `[-1,4]` with a first dimension that
            varies, `">float32[...]"` big-endian. It holds for the schema and all that gives records; `where` and
            `filter` look at features as they are stored.
        reshape: the same values in another shape, `{"boxes": [-1, 4]}` or `"boxes=[-1,4]"`, after decode_raw.
        pad: lists to a fixed length, `{"tokens": "128:0"}` or `"tokens=128:0"`; a longer one is an error.
        ragged: features that are lists of variable length, also if all records hold equally many, such as one.
        decode_images: what encoded images are, as `batches` takes it: (height, width), `Images(...)`, or one of them
            by feature. It holds likewise; an argument of a call such as `batches(decode_images=...)` holds instead.
            Where no feature is named, the first records decide which ones are images.
        class_names: classes are text, their names, and not numbers, in all that gives records.

    Raises:
        UsageError: nothing there, no such split or column, a predicate that has no meaning for the features, or a
            feature that can't be decoded so.
        DataError: a shard is missing or not as long as the manifest says.
    """
    limit_requests(storage_requests)
    catalog = catalog_inputs(inputs, split)
    if cache is None and cache_bytes != _DEFAULT_CACHE_BYTES:
        raise UsageError(
            f"{option('cache_bytes')} bounds what {option('cache')} keeps: name its folder"
        )
    if cache is not None or storage_requests is not None:
        folder = "" if cache is None else parse_local_path(cache)
        catalog = with_store_settings(
            catalog, storage_requests, folder, parse_size(cache_bytes, "cache_bytes")
        )
    if infer_from is not None and schema is not None:
        raise UsageError(
            f"{option('infer_from')} and {option('schema')} exclude each other: give one of them"
        )
    sample = None if infer_from is None else Sample.parse(infer_from)
    explicit_schema = load_schema(schema)
    return Dataset(
        catalog,
        catalog.schema if explicit_schema is None else explicit_schema,
        [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns,
        threads or 0,
        sample,
        None if where is None else Predicate(where),
        View(
            steps=conversion_steps(decode_raw, reshape, pad, None, ragged),
            images=parse_image_targets(decode_images),
            class_names=class_names,
        ),
    )


class Dataset(Scanner, Trainable, StatisticsMixin):
    """Records in a fixed order, addressed by number. It can be pickled, and shared between threads.

    With `where`, or filtered, it has the records for which that holds. Reading them in order filters on the way; `len`,
    numbers, slices and `to_numpy()` need to know which ones they are, and the first of these finds out by one pass over
    the features that the predicates look at (a bit for each record is kept). `schema` has the features that are read,
    under the names that are shown; `full_schema` all that the records have, as they have them.
    """

    @cached_property
    def _parse_plan(self) -> ParsePlan | None:
        return None if self._decoding.steps else make_parse_plan(self._stored_schema)

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
        """`ds[17]`: one record as a dict; `ds[5:9]`, `ds[[3, 1, 8]]`: a pyarrow.Table of these records in that order;
        `ds["name"]`: that column as an array; `ds[["a", "b"]]`: `ds.select(["a", "b"])`.

        In the dict a scalar is a Python or NumPy scalar, `str` or `bytes`; a tensor or a list is an array; what is
        missing is None.
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
            return self._record(int(key))
        return self.take(key)

    def _record(self, record: int) -> dict[str, Any]:
        total = len(self)
        if not -total <= record < total:
            raise IndexError(f"record {record} of {total}")
        record = int(self._to_stored_numbers(np.array([record % total]))[0])
        file_index = int(np.searchsorted(self.ends, record, "right"))
        first = int(self.ends[file_index - 1]) if file_index else 0
        row = read_row(
            self.files[file_index],
            record - first,
            self._decoding,
            self._parse_plan,
            is_full_schema=self._columns is None,
        )
        return dict(zip(self.schema.names, row.values(), strict=True))

    def take(self, records: Sequence[int] | npt.NDArray[Any]) -> pa.Table:
        """The records of these numbers (negative ones count from the end), in this order, as a pyarrow.Table."""
        numbers = self._to_stored_numbers(resolve_record_numbers(records, len(self)))
        table = take_rows(self.files, self.ends, numbers, self._decoding, self.threads)
        return pa.Table.from_arrays(table.columns, schema=to_arrow(self.schema))

    def sample(self, records: int = 5, seed: int = 0) -> pa.Table:
        """Returns so many records, or all if there are fewer, drawn without repetition.

        The same seed gives the same records, in the order in which they are drawn.
        """
        ranks = np.arange(min(to_whole_number(records, "records", 0), len(self)))
        return self.take(
            permuted(
                ranks, len(self), key_of(self.fingerprint, "sample", to_whole_number(seed, "seed"))
            )
        )

    def report(self) -> Any:
        """The data set as one HTML page, a `reader.report.report.Report`: classes, histograms, sample records and
        images. A notebook shows it, and `save(path)` writes it.
        """
        return import_module("recordmill.reader.report.report").make_report(self)

    def __arrow_c_schema__(self) -> object:
        return to_arrow(self.schema).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Returns Arrow's stream of the records, by which `duckdb.sql("from ds")`, `polars.DataFrame(ds)` and
        `pyarrow.table(ds)` read them.
        """
        reader = pa.RecordBatchReader.from_batches(to_arrow(self.schema), self.record_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __getitems__(self, records: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the records of these numbers as dicts, read together, as loaders of PyTorch ask for a batch."""
        batches = self.take(records).combine_chunks().to_batches()
        return [row for batch in batches for row in rows_of(batch, self.schema)]

    def to_table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Records [start, stop) as one pyarrow.Table in memory; negative numbers count from the end, as in a slice."""
        if (start, stop) != (0, None):
            return self._make_table(self.record_batches(start, stop))
        return self._run_in_one_pass(lambda ds: ds._make_table(ds.record_batches()))

    def to_batches(self, batch_rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the records in order in batches of batch_rows rows; None: as they come, about 8 MiB each."""
        from recordmill.reader.arrays import rebatch

        batches = self.record_batches()
        return batches if batch_rows is None else rebatch(batches, batch_rows)

    def to_numpy(self, memmap_dir: str | os.PathLike[str] | None = None) -> Columns:
        """Returns every column as an array; `recordmill.records.columns.numpy_arrays` says what each feature becomes.

        Args:
            memmap_dir: an empty or new folder; the columns are written there as `.npy` files and given memory-mapped,
                so they may exceed memory; text is then `Strings` instead of an object array.
                `open_columns(memmap_dir)` opens them again.
        """
        if memmap_dir is None:
            return self._run_in_one_pass(
                lambda ds: gather_columns(ds.record_batches(), ds.schema, len(ds))
            )
        from recordmill.reader.arrays import write_memory_mapped

        return write_memory_mapped(self, memmap_dir)

    def to_pandas(self) -> Any:
        """Returns all records as a pandas.DataFrame."""
        return self.to_table().to_pandas()

    def to_polars(self) -> Any:
        """Returns all records as a polars.DataFrame."""
        return import_module("polars").DataFrame(self)

    def to_npy(self, folder: str | os.PathLike[str]) -> Columns:
        """The columns as `.npy` files in a new or empty folder, given memory-mapped: `to_numpy(memmap_dir=folder)`."""
        return self.to_numpy(folder)

    def to_parquet(
        self, path: str | os.PathLike[str], *, compression: str = "zstd", overwrite: bool = False
    ) -> Path | str:
        """Writes the records, in order and as this view has them, as one Parquet file.

        The file has its name when it is whole; memory holds one row group. `recordmill.read` writes many files at once,
        and counts and resumes.

        Args:
            path: also an object of a store (`s3://bucket/view.parquet`), whose URI is then returned; it is prepared
                among the temporary files of this machine.
            compression: "zstd", "snappy", "gzip" or "none".
            overwrite: a file of that name is replaced.

        Raises:
            UsageError: something of that name is there, or there is no such compression.
        """
        from recordmill.reader.arrays import write_parquet

        return self._run_in_one_pass(lambda ds: write_parquet(ds, path, compression, overwrite))

    def _run_in_one_pass(self, work: Callable[[Dataset], _Result]) -> _Result:
        """work(self), which reads all records: by a guess where the schema is not known, if they all confirm it."""
        unknown = self._explicit_schema is None and not self.__dict__.keys() & {
            "_schema_and_notes",
            "inference",
        }
        guess = None
        if unknown and self.infer_from is None and not self.view.is_filtered:
            guess = guess_schema(self.catalog.files, threads=self.threads)
        if guess is not None:
            with contextlib.suppress(Unconfirmed, DataError, UsageError):  # of what may not be so
                guessing = Dataset(
                    self.catalog, guess.schema, self._columns, self.threads, view=self.view
                )
                guessing.files, guessing._guess = self.files, guess
                result = work(guessing)
                self.__dict__["_schema_and_notes"] = (guess.schema, list(guess.notes))
                return result
        return work(self)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields every record as a dict, as `ds[i]` gives it: for looking, not for bulk."""
        for batch in self.record_batches():
            yield from rows_of(batch, self.schema)

    def __repr__(self) -> str:
        return display_text(*self._display_arguments())

    def _repr_html_(self) -> str:
        """Returns what notebooks show: the same as `repr`, with the features as a table; nothing is read for it."""
        return display_html(*self._display_arguments())

    def _display_arguments(self) -> tuple[str, Schema | None]:
        is_counted = self.catalog.manifest is not None or "ends" in self.__dict__
        matching = self.__dict__.get(
            "matching", self.view.subset if not self.view.conditions else None
        )
        conditions = [str(condition.where.predicate) for condition in self.view.conditions]
        headline = make_headline(
            self.catalog,
            self._num_stored if is_counted else None,
            None if matching is None else len(matching),
            conditions + ["they were chosen by number"] * (self.view.subset is not None),
        )
        has_schema = self._explicit_schema is not None or "_schema_and_notes" in self.__dict__
        return headline, self.schema if has_schema else None
