"""The analysis: the records of one split through tf.Transform to a saved graph in the run's folder.

Workers that share nothing but OUT, in a store, too, analyse groups of units, each by a pipeline of its own process, and
what its analysers found, which is small, goes to OUT as a file (`AnalyzeGroups`): a JSON object of the keys of
tf.Transform's cache to their elements, all in hex. tf.Transform itself keeps graphs and vocabularies in a folder that
all workers must see as one on a disk. What was found becomes the transform in one process (`FitAnalyses`).
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.beam.analysis_graph_builder import get_analysis_dataset_keys
from tensorflow_transform.beam.analyzer_cache import DatasetCache, DatasetKey
from tensorflow_transform.tf_metadata import metadata_io
from tfx_bsl.tfxio.tensor_adapter import TensorAdapter, TensorAdapterConfig

from recordmill.base.errors import DataError
from recordmill.base.progress import find_progress
from recordmill.building.ingest import assign_keys, parse_payloads, read_unit_group
from recordmill.building.workers import shared_files
from recordmill.preprocessing.tensors import as_lists, list_schema, representations
from recordmill.schemas.feature import Schema
from recordmill.storage.files import create_file, put_bytes, put_if_absent, read_range, write_all
from recordmill.storage.folders import (
    copy_tree,
    is_folder,
    join,
    make_scratch_folder,
    remove_tree,
    rename,
)
from recordmill.transforms import beam_types
from recordmill.transforms.beam_types import (
    AsSingleton,
    Create,
    FlatMap,
    Map,
    PCollection,
    Pipeline,
    PTransform,
)
from recordmill.transforms.local_run import run_locally

PreprocessingFunction = Callable[[dict[str, Any]], dict[str, Any]]

# as tft.TFTransformOutput names them
TRANSFORM_FN = "transform_fn"
METADATA = "transformed_metadata"


def split_batches(
    groups: Iterable[int], given: shared_files.PlanHandle, split: str, inputs: Schema
) -> Iterator[pa.RecordBatch]:
    """The records of a split in these groups of units, each column a list, as tf.Transform's adapter takes them."""
    plan = given.load()
    progress, ordinal = find_progress(plan.folder), plan.split_names.index(split)
    for group in groups:
        for chunk in read_unit_group(plan, group):
            placed, _ = parse_payloads(plan, assign_keys(plan, chunk)[0])
            assert isinstance(placed.records, pa.RecordBatch)
            batch, mine = placed.records.select(list(inputs.names)), placed.split_ids == ordinal
            if not mine.all():
                batch = batch.take(pa.array(np.flatnonzero(mine)))
            progress.advance(batch.num_rows)
            if batch.num_rows:
                yield as_lists(batch, inputs)


@dataclass
class FitTransform(PTransform):
    """Turns packs of group numbers into the folder that then holds the saved transform.

    Attributes:
        split: whose records are analysed.
        inputs: the features that the function gets.
        target: the folder that is to hold it; whoever finds it there already leaves it.
    """

    plan: shared_files.PlanHandle
    split: str
    inputs: Schema
    function: PreprocessingFunction
    target: str

    def expand(self, packs: PCollection) -> PCollection:  # (group, ...) -> path
        batches = read_split(packs, self.plan, self.split, self.inputs)
        model, metadata = (batches, adapter(self.inputs)) | "Analyze" >> tft_beam.AnalyzeDataset(
            self.function
        )
        return publish(packs.pipeline, self.target, model, metadata)


def read_split(
    packs: PCollection, plan: shared_files.PlanHandle, split: str, inputs: Schema
) -> PCollection:
    """The records of `split_batches`, of packs of group numbers."""
    return packs | "Read" >> FlatMap(split_batches, plan, split, inputs).with_output_types(
        pa.RecordBatch
    )


def adapter(inputs: Schema) -> Any:
    """The configuration by which tf.Transform takes the batches as tensors."""
    return TensorAdapterConfig(list_schema(inputs), representations(inputs))


def publish(pipeline: Pipeline, target: str, model: PCollection, metadata: Any) -> PCollection:
    """Writes the result of an analysis to the folder of the saved transform."""
    put = Map(
        publish_transform,
        AsSingleton(model),
        AsSingleton(metadata.deferred_metadata),
        metadata.asset_map,
    )
    return pipeline | "Once" >> Create([target]) | "Publish" >> put


def publish_transform(target: str, model: str, metadata: Any, asset_map: dict[str, str]) -> str:
    """Puts the saved transform where it belongs, whole or not at all: a copy under a name of its own, then one rename;
    a repeated or a second attempt leaves what is there.
    """
    attempt = Path(f"{target}.{uuid.uuid4().hex}")
    copy_tree(model, attempt / TRANSFORM_FN, ignored_patterns=(".tft_metadata", "fingerprint.pb"))
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
    return tft_beam.Context(temp_dir=make_scratch_folder("tft-", folder))


_LIST = "fit.json"
_DATASET = DatasetKey("split")  # of tf.Transform's caches


@dataclass
class AnalyzeGroups(PTransform):
    """Turns groups of units into files in OUT and a list of them: gives their number. Fields: see `FitTransform`."""

    plan: shared_files.SharedPlanHandle
    split: str
    inputs: Schema
    function: PreprocessingFunction

    def expand(self, groups: PCollection) -> PCollection:  # group -> int
        made = (
            groups
            | "Spread" >> beam_types.Reshuffle()
            | "Analyze" >> FlatMap(analyse_group, self.plan, self.split, self.inputs, self.function)
            | "Account"
            >> beam_types.Reshuffle()  # from here on the engine knows which attempt counts
        )
        # One element, also of no groups: with it the list is made once, when all of it is there.
        once = groups.pipeline | "Once" >> Create([None])
        return once | "List" >> Map(list_analyses, beam_types.AsIter(made), self.plan)


def analyse_group(
    group: int,
    plan: shared_files.SharedPlanHandle,
    split: str,
    inputs: Schema,
    function: PreprocessingFunction,
) -> Iterator[tuple[int, str]]:  # (group, name of the file among those of attempts)
    """Analyses a group of units; gives nothing where it has no record of the split."""
    job_folder = plan.job_folder
    with job_folder.open_run().keep_alive(), shared_files.task_workspace(plan) as local_plan:
        if next(split_batches((group,), local_plan.local_handle(), split, inputs), None) is None:
            return
        path = join(local_plan.folder, "analysis.json")

        def construct(pipeline: Pipeline) -> None:
            with temporary(local_plan.folder):
                batches = read_split(
                    pipeline | "Group" >> Create([(group,)]),
                    local_plan.local_handle(),
                    split,
                    inputs,
                )
                analysis = "Analyze" >> tft_beam.AnalyzeDatasetWithCache(function, pipeline)
                _, caches = ({_DATASET: batches}, {}, adapter(inputs)) | analysis
                found = dict(
                    sorted(one for cache in caches.values() for one in cache.cache_dict.items())
                )
                texts: Any = (
                    pipeline | "None" >> Create([]),
                    *(
                        some | f"Hex{number}" >> Map(_in_hex, key)
                        for number, (key, some) in enumerate(found.items())
                    ),
                )
                elements = beam_types.AsIter(texts | beam_types.Flatten())
                _ = (
                    pipeline
                    | "Once" >> Create([path])
                    | "Keep" >> Map(write_analysis, list(found), elements)
                )

        run_locally(construct, (), local_plan.folder, find_progress(local_plan.folder))
        yield group, os.path.basename(job_folder.move_in(path, shared_files.ATTEMPTS_FOLDER))


def _in_hex(element: bytes, key: bytes) -> tuple[str, str]:
    return key.hex(), element.hex()


def write_analysis(path: str, keys: Sequence[bytes], elements: Iterable[tuple[str, str]]) -> None:
    """Writes the file of what was found under each key; elements: each after its key, in hex."""
    found: dict[str, list[str]] = {key.hex(): [] for key in keys}
    for key, element in elements:
        found[key].append(element)
    put_bytes(path, json.dumps(found).encode())


def list_analyses(
    _: None, made: Iterable[tuple[int, str]], plan: shared_files.SharedPlanHandle
) -> int:
    """Puts the list of what the engine accounted for into OUT; gives how many they are. The first list stays."""
    names = [name for _, name in sorted(made)]
    put_if_absent(
        plan.job_folder.run_path(shared_files.SHARED_VALUES_FOLDER, _LIST),
        json.dumps(names).encode(),
    )
    return len(names)


def find_analyses(job_folder: shared_files.JobFolder) -> list[dict[str, list[str]]]:
    """Reads what the workers found. NotSharedError: a file is not there; DataError: one is not what a worker wrote."""

    def load(*names: str) -> Any:
        path = job_folder.run_path(*names)
        try:
            return json.loads(read_range(path).tobytes())
        except FileNotFoundError:
            raise shared_files.NotSharedError(path, job_folder.out, "this machine,") from None
        except ValueError:
            raise DataError("is not what this build has written there", source=path) from None

    found = [
        load(shared_files.ATTEMPTS_FOLDER, name)
        for name in load(shared_files.SHARED_VALUES_FOLDER, _LIST)
    ]
    if any(one.keys() != found[0].keys() for one in found):
        where = job_folder.run_path(shared_files.ATTEMPTS_FOLDER)
        raise DataError("workers were given another transform than others", source=where)
    return found


@dataclass
class FitAnalyses(PTransform):
    """Fits the saved transform from what workers found (`find_analyses`), into the folder that `FitTransform` makes.
    Records are read again for analysers that need the result of others, or that tf.Transform keeps nothing of.
    """

    plan: shared_files.PlanHandle
    split: str
    inputs: Schema
    function: PreprocessingFunction
    target: str
    analyses: Sequence[dict[str, list[str]]]

    def expand(self, packs: PCollection) -> PCollection:  # (group, ...) -> path
        found = {
            bytes.fromhex(key): [
                bytes.fromhex(element) for one in self.analyses for element in one[key]
            ]
            for key in self.analyses[0]
        }
        elements: dict[bytes, Any] = {
            key: packs.pipeline | f"Found{number}" >> Create(some).with_output_types(bytes)
            for number, (key, some) in enumerate(found.items())
        }
        config, known = adapter(self.inputs), {_DATASET: DatasetCache(elements, None)}
        specs = TensorAdapter(config).OriginalTypeSpecs()
        is_read = get_analysis_dataset_keys(self.function, specs, {_DATASET}, known, False)
        batches = read_split(packs, self.plan, self.split, self.inputs) if is_read else None
        analysis = "Analyze" >> tft_beam.AnalyzeDatasetWithCache(self.function, packs.pipeline)
        (model, metadata), _ = ({_DATASET: batches}, known, config) | analysis
        return publish(packs.pipeline, self.target, model, metadata)
