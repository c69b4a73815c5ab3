"""Metadata of a saved transform, and the schema of transformed records.

The manifest contains where a transform comes from, its inputs and outputs, the results of its
analyzers, and a digest of all these. The digest does not cover the files of the SavedModel. These
contain temporary paths and random numbers, so they differ between two fits with equal results.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError, UsageError
from recordmill.preprocessing.declaration import NONFINITE_RESULT, UNLISTED_RESULT, Declaration
from recordmill.preprocessing.graph import TransformGraph, list_vocabulary_files, load_graph
from recordmill.preprocessing.saved_transform import SavedTransform
from recordmill.preprocessing.tensors import make_representations
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import extend_pbtxt, from_pbtxt, to_pbtxt
from recordmill.storage.files import read_blocks, read_range, replace_file, write_all
from recordmill.storage.folders import find_files, is_file, is_link, make_folder

# The prefix of raw features that are kept in addition.
RAW_PREFIX = "raw/"


def make_declared_outputs(declaration: Declaration) -> Schema:
    """Returns the features that the graph of a declared transform returns."""
    return Schema(
        tuple(
            Feature(
                column.name,
                column.value.dtype,
                column.value.shape,
                column.value.required and None not in column.value.shape,
            )
            for column in declaration.columns
        )
    )


def trace_outputs(graph: TransformGraph, raw: Schema) -> Schema:
    """Determines the features that the graph of a user's function returns.

    An output that is an unchanged input keeps the dtype and the classes of the raw feature. A
    tensor becomes a feature of its shape, and a RaggedTensor becomes a list.

    If a SparseTensor has only one column, it becomes a single value that may be missing. It also
    becomes one if it has the indices of a raw feature that is a single value. Otherwise it becomes
    a list.

    Args:
        raw: The schema of the raw records.

    Returns:
        The features, sorted by name.

    Raises:
        UsageError: No feature can represent an output.
    """
    return Schema(tuple(_trace_output(name, graph, raw) for name in sorted(graph.specs)))


def _trace_output(name: str, graph: TransformGraph, raw: Schema) -> Feature:
    import tensorflow as tf

    if (source := graph.find_passed_input(name)) is not None:
        return Feature(
            name, raw[source].dtype, raw[source].shape, raw[source].required, raw[source].classes
        )
    spec = graph.specs[name]
    dtype = _dtype(name, spec.dtype.name, raw)
    if isinstance(spec, tf.TensorSpec):
        return Feature(name, dtype, _shape(name, spec), required=True)
    if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank == 1 and len(spec.shape) == 2:
        return Feature(name, dtype, (None,))
    if isinstance(spec, tf.SparseTensorSpec) and len(spec.shape) == 2:
        source = graph.find_sparse_source(name)
        is_single = spec.shape[1] == 1 or (source is not None and not raw[source].shape)
        return Feature(name, dtype, () if is_single else (None,))
    raise UsageError(
        f"transform: output {name!r} is {spec}; return a tensor, or a list of numbers or texts for each row"
    )


def _shape(name: str, spec: Any) -> tuple[int, ...]:
    if spec.shape.rank is None or spec.shape.rank < 1 or None in spec.shape[1:]:
        raise UsageError(
            f"transform: output {name!r} has shape {spec.shape}: each row needs a known one; tf.reshape it, or "
            "return a ragged tensor"
        )
    return tuple(int(size) for size in spec.shape[1:])


def _dtype(name: str, dtype: str, raw: Schema) -> str:
    if dtype != "string":
        return dtype
    return "string" if name in raw and raw[name].dtype == "string" else "bytes"


def find_passthrough_features(
    raw: Schema, copied: Iterable[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """Returns the outputs that must be added to keep all raw features.

    Args:
        raw: The schema of the raw records.
        copied: (output name, raw name) of the features that outputs keep as they are.

    Returns:
        (output name, raw name) of each other raw feature. The output name has the prefix
        RAW_PREFIX.
    """
    copied_names = {source for _, source in copied}
    return tuple(
        (RAW_PREFIX + feature.name, feature.name)
        for feature in raw
        if feature.name not in copied_names
    )


def make_transformed_schema(
    raw: Schema, outputs: Schema, copied: Iterable[tuple[str, str]], sources: dict[str, str]
) -> Schema:
    """Returns the schema of the transformed records.

    Each output takes the position of its raw feature. Outputs with an unknown raw feature are at
    the end.

    Args:
        raw: The schema of the raw records.
        outputs: The features that the graph returns.
        copied: (output name, raw name) of the features that are copied unchanged.
        sources: Raw name by output name, for outputs that come from one raw feature.

    Raises:
        UsageError: Two outputs have the same name.
    """
    copied = list(copied)
    copied_features = [
        Feature(
            name, raw[source].dtype, raw[source].shape, raw[source].required, raw[source].classes
        )
        for name, source in copied
    ]
    sources_by_output = {**dict(copied), **sources}
    features = [*outputs, *copied_features]
    names = [feature.name for feature in features]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"transform: two outputs are called {twice[0]!r}; rename one")
    order = {name: place for place, name in enumerate(raw.names)}
    features.sort(
        key=lambda f: (
            order.get(sources_by_output.get(f.name, f.name), len(order)),
            f.name in dict(copied),
        )
    )
    label = (
        next(
            (
                item.name
                for item in features
                if sources_by_output.get(item.name, item.name) == raw.label
            ),
            None,
        )
        if raw.label
        else None
    )
    return Schema(tuple(features), label)


_NOTES_BY_RESULT = {
    NONFINITE_RESULT: "values are NaN or infinite, and do not count",
    UNLISTED_RESULT: "words are empty or contain a line break, so they count as unknown",
}
_BLOCK_BYTES = 1 << 20  # 1 MiB: the part of a vocabulary in memory
# Results with more numbers are left out of the manifest, where only users read them.
_MAX_NUMBERS = 1000


@dataclass(frozen=True)
class FitOrigin:
    """The schema and the definition of a fitted transform.

    Attributes:
        raw: The schema of the raw records.
        inputs: The features that the function receives.
        declaration: The declaration, or None for a user's function.
        definition: The declared mapping, or the name of the user's function.
        split: The split that was analyzed.
        keep_raw: Whether the records also keep all raw features.
    """

    raw: Schema
    inputs: Schema
    declaration: Declaration | None
    definition: Any
    split: str
    keep_raw: bool = False


def describe_transform(folder: str, origin: FitOrigin) -> SavedTransform:
    """Returns the saved transform of a folder, with its entry for the manifest.

    Metadata files that readers of tf.Transform expect are added to the folder.

    Args:
        folder: The folder of the saved transform.
        origin: The schema and the definition of the transform.

    Raises:
        UsageError: No feature can represent an output, or two outputs have the same name.
    """
    graph = TransformGraph(load_graph(folder).transform_fn)
    declaration = origin.declaration
    outputs = (
        trace_outputs(graph, origin.raw)
        if declaration is None
        else make_declared_outputs(declaration)
    )
    copied = () if declaration is None else declaration.copied
    passed_inputs = {
        name: source
        for name in outputs.names
        if (source := graph.find_passed_input(name)) is not None
    }
    if origin.keep_raw:
        copied = (
            *copied,
            *find_passthrough_features(origin.raw, [*copied, *passed_inputs.items()]),
        )
    sources = (
        {column.name: column.source for column in declaration.columns}
        if declaration is not None
        else passed_inputs
    )
    schema = make_transformed_schema(origin.raw, outputs, copied, sources)
    schema_texts = [to_pbtxt(origin.inputs), to_pbtxt(replace(schema, label=None)), repr(copied)]
    results = _collect_results(folder, graph, declaration)
    vocabulary_digests = [
        hashlib.sha256(read_range(path).tobytes()).hexdigest()
        for path in list_vocabulary_files(folder)
    ]
    digest = hashlib.sha256(
        json.dumps([schema_texts, origin.definition, results, vocabulary_digests]).encode()
    ).hexdigest()
    schema = replace(
        schema,
        features=tuple(_add_results(feature, results.get(feature.name)) for feature in schema),
    )
    _write_tft_metadata(
        folder,
        origin.inputs,
        [feature for feature in schema if feature.name not in outputs],
        results,
    )
    entry = {
        "digest": digest,
        "fitted_on": origin.split,
        "given": origin.definition,
        "raw_schema": to_pbtxt(origin.raw),
        "inputs": list(origin.inputs.names),
        "outputs": list(outputs.names),
        "kept": [list(pair) for pair in copied],
        "needs": {name: sorted(graph.find_inputs(name)) for name in outputs.names},
        "found": results,
        "files": dict(_hash_files(folder)),
    }
    return SavedTransform(
        folder,
        inputs=origin.inputs,
        outputs=outputs,
        copied=copied,
        schema=schema,
        digest=digest,
        manifest_entry=entry,
    )


def describe_uncounted_records(saved: SavedTransform) -> tuple[str, ...]:
    """Returns a note for each feature with values that the analyzers left out."""
    results_of = (
        saved.manifest_entry["found"].items()
        if isinstance(saved.manifest_entry["given"], Mapping)
        else ()
    )
    return tuple(
        f"transform: feature {name!r}: {results[result]:,} {text}"
        for name, results in results_of
        for result, text in _NOTES_BY_RESULT.items()
        if result in results
    )


def _write_tft_metadata(
    folder: str, inputs: Schema, copied: Iterable[Feature], results_of: Mapping[str, Any]
) -> None:
    """Writes files that `tft.TFTransformOutput` expects but that tf.Transform does not write.

    These are the schema for parsing raw records, the schema of the transformed records with the
    copied features, and the vocabularies by feature name.

    Args:
        folder: The folder of the saved transform.
        inputs: The features that the graph takes.
        copied: The features that are copied.
        results_of: The results of the analyzers, by output.
    """
    make_folder(os.path.join(folder, "metadata"), exist_ok=True)
    _write(
        os.path.join(folder, "metadata", "schema.pbtxt"),
        to_pbtxt(inputs, make_representations(inputs)),
    )
    transformed = os.path.join(folder, "transformed_metadata", "schema.pbtxt")
    _write(transformed, extend_pbtxt(read_range(transformed).tobytes().decode(), copied))
    asset_map_path = os.path.join(folder, "transformed_metadata", "asset_map")
    files = {
        name: os.path.basename(result["vocabulary_file"])
        for name, result in results_of.items()
        if isinstance(result, Mapping) and "vocabulary_file" in result
    }
    if files:
        existing = (
            json.loads(read_range(asset_map_path).tobytes()) if is_file(asset_map_path) else {}
        )
        # Names that tf.Transform has written itself take precedence.
        _write(asset_map_path, json.dumps({**files, **existing}, sort_keys=True))


def _write(path: str, text: str) -> None:
    with replace_file(Path(path)) as file:
        write_all(file, text.encode())


def _add_results(feature: Feature, results: Any) -> Feature:
    """Returns the feature with the numbers that the analyzers computed for it.

    Args:
        results: Its results by name, or None.
    """
    if not isinstance(results, Mapping):
        return feature
    numbers = tuple(
        (key, float(value)) for key, value in results.items() if isinstance(value, int | float)
    )
    return replace(feature, found=numbers)


def restore_transform(folder: str, entry: Mapping[str, Any], schema: Schema) -> SavedTransform:
    """Returns the transform that a manifest describes.

    Args:
        folder: The folder with the files of the transform.
        entry: The entry of the manifest for the transform.
        schema: The schema of the transformed records.

    Raises:
        DataError: A file is missing or has changed, or the entry is invalid.
    """
    check_transform_files(folder, entry)
    try:
        raw = from_pbtxt(entry["raw_schema"], "manifest")
        copied = tuple((str(name), str(source)) for name, source in entry["kept"])
        inputs = replace(raw.select(entry["inputs"]), label=None)
        outputs = replace(schema.select(entry["outputs"]), label=None)
        return SavedTransform(
            folder,
            inputs=inputs,
            outputs=outputs,
            copied=copied,
            schema=schema,
            digest=entry["digest"],
            manifest_entry=entry,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            "the manifest's transform can't be read ({error})", error=error, source=folder
        ) from None


def check_transform_files(folder: str, entry: Mapping[str, Any]) -> None:
    """Raises DataError if a file of the transform is missing or has changed.

    Args:
        folder: The folder with the files of the transform.
        entry: The entry of the manifest for the transform.
    """
    files = dict(_hash_files(folder))
    for name, expected in entry["files"].items():
        if files.get(name) != expected:
            problem = "is missing" if name not in files else "differs from what the manifest says"
            raise DataError(
                f"{problem}; the transform can't be used", source=os.path.join(folder, name)
            )


def _hash_files(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name of each file below the folder, with its size and SHA-256."""
    for name, path in find_files(folder).items():
        if not is_link(path):
            data = read_range(path).tobytes()
            yield name, {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _collect_results(
    folder: str, graph: TransformGraph, declaration: Declaration | None
) -> dict[str, Any]:
    """Collects the results of the analyzers, and the number of words of each vocabulary.

    Returns:
        For a declared transform, the results of each output, by the name of the output. For a
        user's function, each constant of the graph by the name of its operation, and the number of
        words of each vocabulary by the path of its file.
    """
    results: dict[str, Any] = {}
    if declaration is None:
        constants = graph.read_constants()
        results = {
            name: _to_json_value(value)
            for name, value in constants.items()
            if value.size <= _MAX_NUMBERS
        }
    else:
        for (number, result), value in sorted(graph.read_fitted_values().items()):
            if result in _NOTES_BY_RESULT and not value:
                continue
            results.setdefault(declaration.columns[number].name, {})[result] = _to_json_value(value)
    word_counts = {
        os.path.basename(path): _count_lines(path) for path in list_vocabulary_files(folder)
    }
    if declaration is not None:
        for name, count in word_counts.items():
            column = declaration.columns[int(name.split("_")[1])].name
            results.setdefault(column, {}).update(
                vocabulary=count, vocabulary_file=f"transform_fn/assets/{name}"
            )
        return results
    return {
        **results,
        **{f"assets/{name}": {"vocabulary": count} for name, count in word_counts.items()},
    }


def _to_json_value(value: Any) -> Any:
    """Converts an array to JSON values. NaN and infinity become strings."""
    flat = value.tolist()
    if isinstance(flat, list) and len(flat) == 1:
        # Boundaries have the shape [1, n].
        flat = flat[0]
    return _replace_non_json(flat)


def _replace_non_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_replace_non_json(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _count_lines(path: str) -> int:
    num_lines, end = 0, b"\n"
    for block in read_blocks(path, _BLOCK_BYTES):
        data = block.tobytes()
        num_lines, end = num_lines + data.count(b"\n"), data[-1:]
    return num_lines + (end != b"\n")  # the last line may have no end
