"""The analysis: the records of one split through tf.Transform's `AnalyzeDataset` to a saved graph in the run's folder.

Reading is fused with analysing, so that no batch waits between stages while one pass suffices; analysers upon what
other analysers found take a pass each, and tf.Transform keeps the batches for the later ones.
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
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.progress import progress_of
from recordmill.building.ingest import parsed, place, read
from recordmill.building.plan import BuildPlan, load_plan
from recordmill.preprocessing.tensors import as_lists, list_schema, representations
from recordmill.schemas.feature import Schema
from recordmill.sources.inputs.contract import Unit
from recordmill.storage.files import create_file, write_all
from recordmill.storage.folders import copy_tree, is_folder, make_scratch, remove_tree, rename
from recordmill.transforms.beam_types import AsSingleton, Create, FlatMap, Map, PCollection, PTransform
from recordmill.transforms.tft.portable import make_portable

TRANSFORM_FN, METADATA = "transform_fn", "transformed_metadata"  # as tft.TFTransformOutput names them


def split_batches(groups: Iterable[int], plan_path: str, split: str, inputs: Schema) -> Iterator[pa.RecordBatch]:
    """The records of a split in these groups of units, each column a list, as tf.Transform's adapter takes them."""
    plan = load_plan(plan_path)
    for group in groups:
        for batch, _ in group_batches(plan, group, split, inputs):
            yield batch


def group_batches(
    plan: BuildPlan, group: int, split: str, inputs: Schema, wanted: Callable[[Unit], bool] = lambda unit: True
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.uint32]]]:
    """The same of one group, with the ordinal of each record's file; units that are not wanted are not read."""
    progress = progress_of(plan.folder)
    ordinal = plan.splits.index(split)
    for chunk in read(plan, group, wanted):
        placed, _ = parsed(plan, place(plan, chunk))
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

    plan: the path of the pickled plan. split: whose records are analysed. inputs: the features that the function gets.
    target: the folder that is to hold it; whoever finds it there already leaves it.
    """

    plan: str
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
            | "Publish" >> Map(publish, AsSingleton(model), AsSingleton(metadata.deferred_metadata), metadata.asset_map)
        )
        return published


def publish(target: str, model: str, metadata: Any, asset_map: dict[str, str]) -> str:
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
