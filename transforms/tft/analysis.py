"""The analysis: the records of one split through tf.Transform's `AnalyzeDataset` to a saved graph in the run's
folder.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import metadata_io
from tfx_bsl.tfxio.tensor_adapter import TensorAdapterConfig

from recordmill.base.progress import progress_of
from recordmill.building.ingest import assign_keys, parsed, read_unit
from recordmill.building.workers.shared_files import SentPlan
from recordmill.preprocessing.tensors import as_lists, list_schema, representations
from recordmill.schemas.feature import Schema
from recordmill.storage.files import create_file, write_all
from recordmill.storage.folders import copy_tree, is_folder, make_scratch, remove_tree, rename
from recordmill.transforms.beam_types import AsSingleton, Create, FlatMap, Map, PCollection, Pipeline, PTransform

TRANSFORM_FN, METADATA = "transform_fn", "transformed_metadata"  # as tft.TFTransformOutput names them


def split_batches(groups: Iterable[int], given: SentPlan, split: str, inputs: Schema) -> Iterator[pa.RecordBatch]:
    """The records of a split in these groups of units, each column a list, as tf.Transform's adapter takes them."""
    plan = given.load()
    progress, ordinal = progress_of(plan.folder), plan.splits.index(split)
    for group in groups:
        for chunk in read_unit(plan, group):
            placed, _ = parsed(plan, assign_keys(plan, chunk))
            assert isinstance(placed.records, pa.RecordBatch)
            batch, mine = placed.records.select(list(inputs.names)), placed.splits == ordinal
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

    plan: SentPlan
    split: str
    inputs: Schema
    function: Callable[[dict[str, Any]], dict[str, Any]]
    target: str

    def expand(self, packs: PCollection) -> PCollection:  # (group, ...) -> path
        batches = read_split(packs, self.plan, self.split, self.inputs)
        model, metadata = (batches, adapter(self.inputs)) | "Analyze" >> tft_beam.AnalyzeDataset(self.function)
        return publish(packs.pipeline, self.target, model, metadata)


def read_split(packs: PCollection, plan: SentPlan, split: str, inputs: Schema) -> PCollection:
    """The records of `split_batches`, of packs of group numbers."""
    batches: PCollection = packs | "Read" >> FlatMap(split_batches, plan, split, inputs).with_output_types(
        pa.RecordBatch
    )
    return batches


def adapter(inputs: Schema) -> Any:
    """The configuration by which tf.Transform takes the batches as tensors."""
    return TensorAdapterConfig(list_schema(inputs), representations(inputs))


def publish(pipeline: Pipeline, target: str, model: PCollection, metadata: Any) -> PCollection:
    """Writes the result of an analysis to the folder of the saved transform."""
    put = Map(publish_transform, AsSingleton(model), AsSingleton(metadata.deferred_metadata), metadata.asset_map)
    published: PCollection = pipeline | "Once" >> Create([target]) | "Publish" >> put
    return published


def publish_transform(target: str, model: str, metadata: Any, asset_map: dict[str, str]) -> str:
    """Puts the saved transform where it belongs, whole or not at all: a copy under a name of its own, then one rename;
    a repeated or a second attempt leaves what is there.
    """
    attempt = Path(f"{target}.{uuid.uuid4().hex}")
    copy_tree(model, attempt / TRANSFORM_FN, leave_out=(".tft_metadata", "fingerprint.pb"))
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
    return tft_beam.Context(temp_dir=make_scratch("tft-", folder))
