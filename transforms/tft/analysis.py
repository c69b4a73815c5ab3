"""Analysis of the records of one split by tf.Transform.

The result is a saved graph in the run's folder. In a single process, `FitTransform` does
everything.

On an engine, workers share only the output folder, possibly in a store. But tf.Transform keeps
graphs and vocabularies in a folder on a disk that all workers must see. So each worker analyzes
unit groups by pipelines in its own process (`AnalyzeUnitGroups`). Each result is a small file in
the output folder: a JSON object with the keys of tf.Transform's cache and their elements, all in
hex. One process then fits the transform from these files (`FitFromAnalyses`).
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
from recordmill.base.local_value import LocalValue
from recordmill.base.progress import Progress
from recordmill.building.ingest import assign_keys, parse_payloads, read_unit_group
from recordmill.building.workers import shared_files
from recordmill.preprocessing.tensors import (
    make_list_schema,
    make_representations,
    to_list_columns,
)
from recordmill.schemas.feature import Schema
from recordmill.storage.files import create_file, put_bytes, put_if_absent, read_range, write_all
from recordmill.storage.folders import (
    copy_tree,
    is_folder,
    join,
    make_scratch_folder,
    remove,
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

# Names that tft.TFTransformOutput expects.
TRANSFORM_FN_FOLDER = "transform_fn"
METADATA_FOLDER = "transformed_metadata"


def read_split_batches(
    unit_groups: Iterable[int],
    plan_handle: shared_files.PlanHandle,
    progress: Progress,
    split_name: str,
    inputs: Schema,
) -> Iterator[pa.RecordBatch]:
    """Yields the records of one split from some unit groups.

    Each column is a list, as tf.Transform's adapter requires.

    Args:
        unit_groups: Indices of the unit groups.
        plan_handle: The handle of the plan.
        progress: Receives the counts.
        split_name: The split.
        inputs: The features to read.
    """
    if isinstance(plan_handle, shared_files.SharedValue):
        plan_handle.job_folder.begin_step()
    plan = plan_handle.load()
    split_id = plan.split_names.index(split_name)
    for unit_group in unit_groups:
        for chunk in read_unit_group(plan, unit_group):
            keyed_chunk, _ = parse_payloads(plan, assign_keys(plan, chunk)[0])
            assert isinstance(keyed_chunk.records, pa.RecordBatch)
            batch, is_in_split = (
                keyed_chunk.records.select(list(inputs.names)),
                keyed_chunk.split_ids == split_id,
            )
            if not is_in_split.all():
                batch = batch.take(pa.array(np.flatnonzero(is_in_split)))
            progress.advance(batch.num_rows)
            if batch.num_rows:
                yield to_list_columns(batch, inputs)


@dataclass
class FitTransform(PTransform):
    """Fits a transform to the records of a split.

    The output is the folder of the saved transform.

    The input elements are tuples of unit group indices. Together they contain all unit groups.

    Attributes:
        plan: The handle of the plan.
        progress: The progress of the build.
        split: The split to analyze.
        inputs: The features that the function receives.
        function: The preprocessing function.
        target: The folder for the saved transform. If it exists, it is kept as it is.
    """

    plan: shared_files.PlanHandle
    progress: Progress
    split: str
    inputs: Schema
    function: PreprocessingFunction
    target: str

    def expand(self, packs: PCollection) -> PCollection:  # (group, ...) -> path
        batches = collect_split(packs, self.plan, self.progress, self.split, self.inputs)
        model, metadata = (
            batches,
            make_adapter_config(self.inputs),
        ) | "Analyze" >> tft_beam.AnalyzeDataset(self.function)
        return publish_result(packs.pipeline, self.target, model, metadata)


def collect_split(
    packs: PCollection,
    plan: shared_files.PlanHandle,
    progress: Progress,
    split_name: str,
    inputs: Schema,
) -> PCollection:
    """Returns the records of one split as a PCollection of RecordBatches.

    Args:
        packs: Tuples of unit group indices.
        plan: The handle of the plan.
        progress: Receives the counts.
        split_name: The split.
        inputs: The features to read.
    """
    return packs | "Read" >> FlatMap(
        read_split_batches, plan, progress, split_name, inputs
    ).with_output_types(pa.RecordBatch)


def make_adapter_config(inputs: Schema) -> Any:
    """Returns the configuration that tf.Transform needs to convert batches to tensors."""
    return TensorAdapterConfig(make_list_schema(inputs), make_representations(inputs))


def publish_result(
    pipeline: Pipeline, target: str, model: PCollection, metadata: Any
) -> PCollection:
    """Adds the step that moves a result to the folder of the transform.

    The output of the step is the folder.

    Args:
        pipeline: The pipeline.
        target: The folder.
        model: The path of the saved model, as a single element.
        metadata: The metadata from tf.Transform.
    """
    publish = Map(
        publish_transform_folder,
        AsSingleton(model),
        AsSingleton(metadata.deferred_metadata),
        metadata.asset_map,
    )
    return pipeline | "Once" >> Create([target]) | "Publish" >> publish


def publish_transform_folder(
    target: str, model: str, metadata: Any, asset_map: dict[str, str]
) -> str:
    """Moves the saved transform to its folder, completely or not at all.

    The files are copied to a folder with a unique name, which is then renamed. If `target` exists
    already, another attempt was first, and its result is kept.

    Args:
        target: The folder.
        model: The path of the saved model.
        metadata: The metadata from tf.Transform.
        asset_map: File names of the vocabularies, by name in tf.Transform.

    Returns:
        `target`.
    """
    attempt = Path(f"{target}.{uuid.uuid4().hex}")
    copy_tree(
        model, attempt / TRANSFORM_FN_FOLDER, ignored_names=(".tft_metadata", "fingerprint.pb")
    )
    metadata_io.write_metadata(metadata, os.fspath(attempt / METADATA_FOLDER))
    if asset_map:
        with create_file(attempt / METADATA_FOLDER / "asset_map") as file:
            write_all(file, json.dumps(asset_map, sort_keys=True).encode())
    try:
        rename(attempt, target)
    except OSError:
        if not is_folder(target):
            raise
        remove(attempt)
    return target


def analysis_context(folder: str) -> Any:
    """Returns the context manager of tf.Transform that puts its temporary files into `folder`."""
    return tft_beam.Context(temp_dir=make_scratch_folder("tft-", folder))


_ANALYSES_LIST = "fit.json"
# The key of the data set in tf.Transform's caches.
_DATASET = DatasetKey("split")


@dataclass
class AnalyzeUnitGroups(PTransform):
    """Analyzes unit groups on workers, and outputs the number of analyses.

    The input elements are indices of unit groups. The analyses are files in the output folder.

    Attributes:
        plan: The handle of the plan.
        split: The split to analyze.
        inputs: The features that the function receives.
        function: The preprocessing function.
    """

    plan: shared_files.SharedPlanHandle
    split: str
    inputs: Schema
    function: PreprocessingFunction

    def expand(self, groups: PCollection) -> PCollection:  # group -> int
        analyses = (
            groups
            | "Spread" >> beam_types.Reshuffle()
            | "Analyze"
            >> FlatMap(analyze_unit_group, self.plan, self.split, self.inputs, self.function)
            | "Account"
            # From here on, the engine knows which attempt it has accepted.
            >> beam_types.Reshuffle()
        )
        # A single element, even without unit groups. So the list is written once, when all results
        # are there.
        start = groups.pipeline | "Once" >> Create([None])
        return start | "List" >> Map(write_analysis_list, beam_types.AsIter(analyses), self.plan)


def analyze_unit_group(
    unit_group: int,
    plan: shared_files.SharedPlanHandle,
    split_name: str,
    inputs: Schema,
    function: PreprocessingFunction,
) -> Iterator[tuple[int, str]]:  # (group, name of the file among those of attempts)
    """Analyzes one unit group by a pipeline in this process.

    Args:
        unit_group: Index of the unit group.
        plan: The handle of the plan.
        split_name: The split to analyze.
        inputs: The features that the function receives.
        function: The preprocessing function.

    Yields:
        (index of the unit group, name of the file with the analysis). Nothing if the unit group has
        no record of the split.
    """
    job_folder = plan.job_folder
    with job_folder.work(), shared_files.task_workspace(plan) as local_plan:
        # The engine shows its own progress, so nothing displays these counters.
        handle, progress = LocalValue.of(local_plan), Progress()
        if (
            next(read_split_batches((unit_group,), handle, progress, split_name, inputs), None)
            is None
        ):
            return
        path = join(local_plan.folder, "analysis.json")

        def construct(pipeline: Pipeline) -> None:
            with analysis_context(local_plan.folder):
                batches = collect_split(
                    pipeline | "Group" >> Create([(unit_group,)]),
                    handle,
                    progress,
                    split_name,
                    inputs,
                )
                analysis = "Analyze" >> tft_beam.AnalyzeDatasetWithCache(function, pipeline)
                _, caches = ({_DATASET: batches}, {}, make_adapter_config(inputs)) | analysis
                elements_by_key = dict(
                    sorted(item for cache in caches.values() for item in cache.cache_dict.items())
                )
                texts: Any = (
                    pipeline | "None" >> Create([]),
                    *(
                        encoded_values | f"Hex{number}" >> Map(_to_hex, key)
                        for number, (key, encoded_values) in enumerate(elements_by_key.items())
                    ),
                )
                elements = beam_types.AsIter(texts | beam_types.Flatten())
                _ = (
                    pipeline
                    | "Once" >> Create([path])
                    | "Keep" >> Map(write_analysis, list(elements_by_key), elements)
                )

        run_locally(construct, (), progress)
        yield unit_group, os.path.basename(job_folder.move_in(path, shared_files.ATTEMPTS_FOLDER))


def _to_hex(element: bytes, key: bytes) -> tuple[str, str]:
    return key.hex(), element.hex()


def write_analysis(path: str, keys: Sequence[bytes], elements: Iterable[tuple[str, str]]) -> None:
    """Writes the elements of each cache key to a JSON file.

    Args:
        path: The file.
        keys: All keys, including keys without elements.
        elements: (key, element), both in hex.
    """
    elements_by_key: dict[str, list[str]] = {key.hex(): [] for key in keys}
    for key, element in elements:
        elements_by_key[key].append(element)
    put_bytes(path, json.dumps(elements_by_key).encode())


def write_analysis_list(
    _: None, named_analyses: Iterable[tuple[int, str]], plan: shared_files.SharedPlanHandle
) -> int:
    """Writes the list of the accepted analyses, and returns their number.

    If a list exists already, it is kept.

    Args:
        named_analyses: (index of the unit group, file name) of each analysis.
        plan: The handle of the plan.
    """
    plan.job_folder.begin_step()
    names = [name for _, name in sorted(named_analyses)]
    put_if_absent(
        plan.job_folder.run_path(shared_files.SHARED_VALUES_FOLDER, _ANALYSES_LIST),
        json.dumps(names).encode(),
    )
    return len(names)


def read_analyses(job_folder: shared_files.JobFolder) -> list[dict[str, list[str]]]:
    """Reads the analyses of the workers.

    Returns:
        A dict for each analysis. It maps the key of each cached analyzer to the elements of its
        cache. Keys and elements are in hex.

    Raises:
        NotSharedError: A file is missing.
        DataError: A file was not written by this build, or the workers had different transforms.
    """

    def load(*names: str) -> Any:
        path = job_folder.run_path(*names)
        try:
            return json.loads(read_range(path).tobytes())
        except FileNotFoundError:
            raise shared_files.NotSharedError(path, job_folder.out, "this machine,") from None
        except ValueError:
            raise DataError("was changed after this build had written it", source=path) from None

    analyses = [
        load(shared_files.ATTEMPTS_FOLDER, name)
        for name in load(shared_files.SHARED_VALUES_FOLDER, _ANALYSES_LIST)
    ]
    if any(analysis.keys() != analyses[0].keys() for analysis in analyses):
        folder = job_folder.run_path(shared_files.ATTEMPTS_FOLDER)
        raise DataError("workers were given another transform than others", source=folder)
    return analyses


@dataclass
class FitFromAnalyses(PTransform):
    """Fits a transform from the analyses of workers.

    The output is the folder of the saved transform.

    Some analyzers need the result of others, or are not cached by tf.Transform. If there are such
    analyzers, the records are read again.

    Attributes:
        plan: The handle of the plan.
        progress: The progress of the build.
        split: The split to analyze.
        inputs: The features that the function receives.
        function: The preprocessing function.
        target: The folder for the saved transform.
        analyses: The result of `read_analyses`.
    """

    plan: shared_files.PlanHandle
    progress: Progress
    split: str
    inputs: Schema
    function: PreprocessingFunction
    target: str
    analyses: Sequence[dict[str, list[str]]]

    def expand(self, packs: PCollection) -> PCollection:  # (group, ...) -> path
        elements_by_key = {
            bytes.fromhex(key): [
                bytes.fromhex(element)
                for group_analysis in self.analyses
                for element in group_analysis[key]
            ]
            for key in self.analyses[0]
        }
        elements: dict[bytes, Any] = {
            key: packs.pipeline | f"Found{number}" >> Create(values).with_output_types(bytes)
            for number, (key, values) in enumerate(elements_by_key.items())
        }
        config, caches = make_adapter_config(self.inputs), {_DATASET: DatasetCache(elements, None)}
        specs = TensorAdapter(config).OriginalTypeSpecs()
        is_read = get_analysis_dataset_keys(self.function, specs, {_DATASET}, caches, False)
        batches = (
            collect_split(packs, self.plan, self.progress, self.split, self.inputs)
            if is_read
            else None
        )
        analysis = "Analyze" >> tft_beam.AnalyzeDatasetWithCache(self.function, packs.pipeline)
        (model, metadata), _ = ({_DATASET: batches}, caches, config) | analysis
        return publish_result(packs.pipeline, self.target, model, metadata)
