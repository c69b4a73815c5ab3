"""The analysis: the records of one split through tf.Transform's `AnalyzeDataset` to a saved graph in the run's folder;
of files that a cache knows in part, through `AnalyzeDatasetWithCache`.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.progress import progress_of
from recordmill.base.threads import shared_context
from recordmill.building.ingest import assign_keys, parsed, read_unit
from recordmill.building.plan import BuildPlan
from recordmill.building.workers.shared_files import SentPlan
from recordmill.preprocessing.analysis_cache import KNOWN, Groups, framed, read_elements
from recordmill.preprocessing.tensors import as_lists, list_schema, representations
from recordmill.schemas.feature import Schema
from recordmill.sources.common.contract import Unit
from recordmill.storage.files import create_file, put_if_absent, read_range, write_all
from recordmill.storage.folders import copy_tree, is_folder, make_scratch, remove_tree, rename
from recordmill.transforms.beam_types import (
    AsIter,
    AsSingleton,
    Create,
    DoFn,
    FlatMap,
    Flatten,
    Map,
    ParDo,
    PCollection,
    PTransform,
    TaggedOutput,
    windowed,
)
from recordmill.transforms.tft.saved_model import make_portable

TRANSFORM_FN, METADATA = "transform_fn", "transformed_metadata"  # as tft.TFTransformOutput names them


def split_batches(groups: Iterable[int], given: SentPlan, split: str, inputs: Schema) -> Iterator[pa.RecordBatch]:
    """The records of a split in these groups of units, each column a list, as tf.Transform's adapter takes them."""
    plan = given.load()
    for group in groups:
        for batch, _ in group_batches(plan, group, split, inputs):
            yield batch


def group_batches(
    plan: BuildPlan, group: int, split: str, inputs: Schema, wanted: Callable[[Unit], bool] = lambda unit: True
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.uint32]]]:
    """The same of one group, with the ordinal of each record's file; units that are not wanted are not read."""
    progress = progress_of(plan.folder)
    ordinal = plan.splits.index(split)
    for chunk in read_unit(plan, group, wanted):
        placed, _ = parsed(plan, assign_keys(plan, chunk))
        assert isinstance(placed.records, pa.RecordBatch)
        batch, file = placed.records.select(list(inputs.names)), placed.file
        mine = placed.splits == ordinal
        if not mine.all():
            batch, file = batch.take(pa.array(np.flatnonzero(mine))), file[mine]
        progress.advance(batch.num_rows)
        if batch.num_rows:
            yield as_lists(batch, inputs), file


@dataclass
class FitTransform(PTransform):
    """Packs of group numbers to the folder that then holds the saved transform.

    split: whose records are analysed. inputs: the features that the function gets.
    target: the folder that is to hold it; whoever finds it there already leaves it.
    """

    plan: SentPlan
    split: str
    inputs: Schema
    function: Callable[[dict[str, Any]], dict[str, Any]]
    target: str

    def expand(self, packs: PCollection) -> PCollection:  # (group, ...) -> path
        import tensorflow_transform.beam as tft_beam
        from tfx_bsl.tfxio.tensor_adapter import TensorAdapterConfig

        batches = packs | "Read" >> FlatMap(split_batches, self.plan, self.split, self.inputs).with_output_types(
            pa.RecordBatch
        )
        config = TensorAdapterConfig(list_schema(self.inputs), representations(self.inputs))
        model, metadata = (batches, config) | "Analyze" >> tft_beam.AnalyzeDataset(self.function)
        published: PCollection = (
            packs.pipeline
            | "Once" >> Create([self.target])
            | "Publish"
            >> Map(publish_transform, AsSingleton(model), AsSingleton(metadata.deferred_metadata), metadata.asset_map)
        )
        return published


def publish_transform(target: str, model: str, metadata: Any, asset_map: dict[str, str]) -> str:
    """Put the saved transform where it belongs, whole or not at all: a copy under a name of its own, then one rename;
    a repeated or a second attempt leaves what is there.
    """
    from tensorflow_transform.tf_metadata import metadata_io

    attempt = Path(f"{target}.{uuid.uuid4().hex}")
    copy_tree(model, attempt / TRANSFORM_FN, leave_out=(".tft_metadata", "fingerprint.pb"))
    make_portable(attempt / TRANSFORM_FN, os.fspath(Path(target).parents[1]))
    metadata_io.write_metadata(metadata, os.fspath(attempt / METADATA))
    if asset_map:
        with create_file(attempt / METADATA / "asset_map") as file:
            write_all(file, json.dumps(asset_map, sort_keys=True).encode())
    try:
        rename(attempt, target)
    except OSError:
        if not is_folder(target):
            raise
        remove_tree(attempt)
    return target


def temporary(folder: str) -> Any:
    """The context in which the analysis keeps its files in the run's folder."""
    import tensorflow_transform.beam as tft_beam

    return tft_beam.Context(temp_dir=make_scratch("tft-", folder))


class SketchCoder:
    """What is kept of a sketch of quantiles: its own bytes. tf.Transform's coder pickles it, and would run whatever a
    file holds in its place.
    """

    def __repr__(self) -> str:
        return "<SketchCoder>"  # which is part of an entry's key

    def encode_cache(self, sketch: Any) -> bytes:
        """The sketch as bytes."""
        return bytes(sketch.__getstate__())

    def decode_cache(self, data: bytes) -> Any:
        """The sketch. Raises RuntimeError for what is none."""
        from tfx_bsl.sketches import QuantilesSketch

        sketch = QuantilesSketch.__new__(QuantilesSketch)
        sketch.__setstate__(data)
        return sketch


@shared_context
def _without_pickles() -> Iterator[None]:
    """Graphs that are made meanwhile keep what their analysers find by coders that pickle nothing."""
    from tensorflow_transform import analyzers

    combiner = analyzers.QuantilesCombiner
    before = combiner.accumulator_coder
    combiner.accumulator_coder = property(lambda self: SketchCoder())
    try:
        yield
    finally:
        combiner.accumulator_coder = before


REPORT = "fit-report.json"
_GROUP, _KNOWN = "group-{}", "known"  # names of data sets of tf.Transform


@dataclass
class FitWithCache(PTransform):
    """Packs of group numbers to the folder that then holds the saved transform, as `FitTransform` does it, and a REPORT
    in the run's folder of what was found in the new groups.

    folder: the run's. The other fields are as in `FitTransform`.
    """

    plan: SentPlan
    split: str
    inputs: Schema
    function: Callable[[dict[str, Any]], dict[str, Any]]
    target: str
    folder: str
    groups: Groups

    def expand(self, packs: PCollection) -> PCollection:  # (group, ...) -> path
        import tensorflow_transform.beam as tft_beam
        from tfx_bsl.tfxio.tensor_adapter import TensorAdapterConfig

        config = TensorAdapterConfig(list_schema(self.inputs), representations(self.inputs))
        known = self._known(packs)
        with _without_pickles():
            read = self._read(packs, known, config)
            batches = {key: read.get(key) for key in (*read, *known)}
            analysis = "Analyze" >> tft_beam.AnalyzeDatasetWithCache(self.function, packs.pipeline)
            (model, metadata), found = (batches, known, config) | analysis
        self._keep(packs, read, found)
        published: PCollection = (
            packs.pipeline
            | "Once" >> Create([self.target])
            | "Publish"
            >> Map(publish_transform, AsSingleton(model), AsSingleton(metadata.deferred_metadata), metadata.asset_map)
        )
        return published

    def _known(self, packs: PCollection) -> dict[Any, Any]:
        """What was found in known groups, as tf.Transform takes it: the elements of all of them, by entry."""
        from tensorflow_transform.beam.analyzer_cache import DatasetCache, DatasetKey

        if not self.groups.known:
            return {}
        found = {
            key: packs.pipeline
            | f"Known{number}" >> Create([(group.path, *group.entries[key]) for group in self.groups.known])
            | f"Elements{number}" >> FlatMap(read_elements).with_output_types(bytes)
            for number, key in enumerate(sorted(self.groups.known[0].entries))
        }
        return {DatasetKey(_KNOWN): DatasetCache(found, None)}

    def _read(self, packs: PCollection, known: dict[Any, Any], config: Any) -> dict[Any, Any]:
        """The batches of the groups that must be read: the new ones, and the known ones for analysers that need what
        other analysers find, or that tf.Transform keeps nothing of.
        """
        from tensorflow_transform.beam.analysis_graph_builder import get_analysis_dataset_keys
        from tensorflow_transform.beam.analyzer_cache import DatasetKey
        from tfx_bsl.tfxio.tensor_adapter import TensorAdapter

        names = {number: _GROUP.format(number) for number in self.groups.new}
        keys = {DatasetKey(name) for name in names.values()} | set(known)
        specs = TensorAdapter(config).OriginalTypeSpecs()
        if set(known) & set(get_analysis_dataset_keys(self.function, specs, keys, known, False)):
            names[KNOWN] = _KNOWN
        if not names:
            return {}
        reading = FlatMap(tagged_batches, self.plan, self.split, self.inputs, self.groups.of_file, names)
        outputs: Any = packs | "Read" >> reading.with_output_types(pa.RecordBatch).with_outputs(*names.values())
        return {DatasetKey(name): outputs[name] for name in names.values()}

    def _keep(self, packs: PCollection, read: Mapping[Any, Any], found: Mapping[Any, Any]) -> None:
        """Leave in the run's folder what was found in each new group, and the report."""
        entries = [
            (data.key, key, elements)
            for data, cache in found.items()
            if data.key != _KNOWN
            for key, elements in cache.items()
        ]
        named = [
            elements | f"Name{number}" >> Map(_named, name, key) for number, (name, key, elements) in enumerate(entries)
        ]
        kept = _flat(packs, "Found", named) | "Keep" >> ParDo(_KeepElements(self.folder))
        names = {key.key for key in read}
        counts = [batches | f"Count{key.key}" >> Map(_rows) for key, batches in read.items()]
        expected = [(name, key.hex()) for name, key, _ in entries]
        _ = (
            packs.pipeline
            | "OnceMore" >> Create([self.folder])
            | "Report" >> Map(_report, expected, _KNOWN in names, AsIter(kept), AsIter(_flat(packs, "Counts", counts)))
        )


def tagged_batches(
    groups: Iterable[int],
    given: SentPlan,
    split: str,
    inputs: Schema,
    of_file: npt.NDArray[np.int16],
    names: Mapping[int, str],
) -> Iterator[Any]:
    """The records of a split in these groups of units, as `split_batches` gives them, each under the name of its file's
    group; files whose group has no name are left out.
    """
    plan = given.load()

    def wanted(unit: Unit) -> bool:
        return not names.keys().isdisjoint(of_file[unit.first_file : unit.last_file].tolist())

    for group in groups:
        for batch, file in group_batches(plan, group, split, inputs, wanted):
            owners = of_file[file]
            for owner in np.unique(owners).tolist():
                if owner in names:
                    mine = owners == owner
                    yield TaggedOutput(names[owner], batch if mine.all() else batch.filter(pa.array(mine)))


def _flat(packs: PCollection, label: str, collections: list[PCollection]) -> PCollection:
    """All of them, which may be none, as one."""
    empty: PCollection = packs.pipeline | f"No{label}" >> Create([])
    flat: PCollection = (empty, *collections) | label >> Flatten()  # type: ignore[operator]
    return flat


def _named(element: bytes, name: str, key: bytes) -> tuple[str, bytes, bytes]:
    return name, key, element


def _rows(batch: pa.RecordBatch) -> int:
    return int(batch.num_rows)


class _KeepElements(DoFn):
    """(name of the group, key of the entry, element) ... to (name, key in hex, path of a file with elements)."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[tuple[str, str], tuple[str, BinaryIO]] = {}

    def start_bundle(self) -> None:
        self._files = {}

    def process(self, found: tuple[str, bytes, bytes]) -> None:
        name, key, element = found
        if (name, key.hex()) not in self._files:
            path = os.path.join(self._folder, f"found-{uuid.uuid4().hex}")
            self._files[name, key.hex()] = (
                path,
                cast(BinaryIO, io.BufferedWriter(cast(io.RawIOBase, create_file(path)))),
            )
        self._files[name, key.hex()][1].write(framed(element))

    def finish_bundle(self) -> Iterator[object]:
        for (name, key), (path, file) in self._files.items():
            file.close()
            yield windowed((name, key, path))


def _report(
    folder: str,
    expected: Iterable[tuple[str, str]],
    again: bool,
    kept: Iterable[tuple[str, str, str]],
    rows: Iterable[int],
) -> None:
    """Write which files hold what was found, how many records were analysed, and whether those of known files are among
    them; a repeated attempt leaves the first report.
    """
    parts: dict[str, dict[str, list[str]]] = {}
    for name, key in expected:  # an entry may have no element
        parts.setdefault(name, {})[key] = []
    for name, key, path in kept:
        parts[name][key].append(path)
    report = {"groups": parts, "records": sum(rows), "again": again}
    put_if_absent(Path(folder, REPORT), json.dumps(report).encode())


def read_report(folder: str) -> tuple[dict[int, dict[bytes, list[str]]], int, bool]:
    """(number of a new group to the files of its entries, how many records were analysed, whether those of known files
    are among them).
    """
    report = json.loads(read_range(os.path.join(folder, REPORT)).tobytes())
    groups = {
        int(name.removeprefix(_GROUP.format(""))): {bytes.fromhex(key): paths for key, paths in entries.items()}
        for name, entries in report["groups"].items()
    }
    return groups, int(report["records"]), bool(report["again"])
