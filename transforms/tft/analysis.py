"""The analysis: the records of one split through tf.Transform's `AnalyzeDataset` to a saved graph in the run's
folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.progress import progress_of
from recordmill.building.ingest import assign_keys, parsed, read_unit
from recordmill.building.workers.shared_files import SentPlan
from recordmill.preprocessing.tensors import as_lists, list_schema, representations
from recordmill.schemas.feature import Schema
from recordmill.storage.files import create_file, read_range, replace_file, write_all
from recordmill.storage.folders import copy_tree, is_folder, make_scratch, paths_in, remove_tree, rename
from recordmill.transforms.beam_types import AsSingleton, Create, FlatMap, Map, PCollection, Pipeline, PTransform

_NUMBERED = re.compile(r"(__(?:inference|forward|backward)_.*?)_(\d+)")
_TENSOR = "_user_specified_name"
MODEL = "saved_model.pb"


def make_portable(model: Path, folder: str) -> None:
    """Rewrites the SavedModel in this folder: without the folders of the run that made it, and with the same bytes
    whenever the same graph was made.

    Functions are called by how many were made in the process before them, and tables by the path of their vocabulary;
    both become names that the content gives. Tables of one name are one table in a process, so that a vocabulary's
    digest stands in it.

    Args:
        model: the folder of the SavedModel.
        folder: the run's, in which the analysis had its files.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    path = model / MODEL
    whole = saved_model_pb2.SavedModel.FromString(read_range(os.fspath(path)).tobytes())
    names = _function_names(whole)
    assets = paths_in(model / "assets") if is_folder(model / "assets") else []
    digests = {asset.name: hashlib.sha256(read_range(os.fspath(asset))).hexdigest() for asset in assets}
    inside = re.compile(re.escape(folder.rstrip("/")) + r"/[^'\"\s]*")

    def plain(text: str) -> str:
        text = names.get(text, text)
        return inside.sub(lambda match: _content_name(match[0], digests), text) if folder in text else text

    _rewrite(whole, plain)
    for graph in whole.meta_graphs:
        library = graph.graph_def.library.function
        for function in library:
            _sort(function.node_def, lambda node: str(node.name))
            for argument in function.arg_attr.values():
                if _TENSOR in argument.attr and argument.attr[_TENSOR].s.isdigit():  # how many were made before
                    del argument.attr[_TENSOR]
        _sort(library, lambda function: str(function.signature.name))
    with replace_file(path) as file:
        write_all(file, whole.SerializeToString(deterministic=True))


def _sort(messages: Any, key: Callable[[Any], str]) -> None:
    """Puts messages whose order says nothing into one that is always the same."""
    ordered = sorted(messages, key=key)
    del messages[:]
    messages.extend(ordered)


def _content_name(path: str, digests: Mapping[str, str]) -> str:
    """Returns the name of the content, in place of the path of an asset or of anything else in the run's folder."""
    name = os.path.basename(path)
    return f"{digests[name][:32]}/{name}" if name in digests else name


def _function_names(model: Any) -> dict[str, str]:
    """Name of a numbered function to that with its place among them, in the order in which they were made."""
    found = {
        name: (int(match[2]), match[1])
        for graph in model.meta_graphs
        for function in graph.graph_def.library.function
        if (match := _NUMBERED.fullmatch(name := function.signature.name))
    }
    ordered = sorted(found, key=lambda name: (found[name], name))
    return {name: f"{found[name][1]}_{place}" for place, name in enumerate(ordered)}


def _rewrite(message: Any, plain: Callable[[str], str]) -> None:
    """Puts `plain` of it in place of every text in the message."""
    for field, value in message.ListFields():
        is_text = field.type in (field.TYPE_STRING, field.TYPE_BYTES)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _rewrite_map(field, value, plain)
        elif field.message_type is not None:
            for one in value if field.label == field.LABEL_REPEATED else [value]:
                _rewrite(one, plain)
        elif is_text and field.label == field.LABEL_REPEATED:
            value[:] = [_plain(one, plain) for one in value]
        elif is_text:
            setattr(message, field.name, _plain(value, plain))


def _rewrite_map(field: Any, found: Any, plain: Callable[[str], str]) -> None:
    """Keys and values of a map; a key whose text changes is put anew."""
    holds_messages = field.message_type.fields_by_name["value"].message_type is not None
    for key in list(found):
        new = _plain(key, plain)
        if holds_messages:
            _rewrite(found[key], plain)
            if new != key:
                found[new].CopyFrom(found[key])
                del found[key]
        else:
            value = _plain(found[key], plain)
            if new != key:
                del found[key]
            found[new] = value


def _plain(value: Any, plain: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, bytes):  # which may be any, a serialized message, too
        return plain(text).encode() if (text := _text(value)) is not None else value
    return value


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


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
        import tensorflow_transform.beam as tft_beam

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
    from tfx_bsl.tfxio.tensor_adapter import TensorAdapterConfig

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
