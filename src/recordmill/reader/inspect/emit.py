"""Descriptions of a `Dataset` for other programs.

There are three kinds: a schema, a specification for parsing, and a reader.

The schema is a `schema.pbtxt`, the specification is code for `tf.io`, and the reader is a Python
program with tf.data. The reader needs TensorFlow but not recordmill, so it works with the tf.data
service and in saved graphs. It returns the tensors of `to_tf(shuffle=False)`, and raises an error
if the number of records of a file has changed.
"""

from __future__ import annotations

import ast
import json
import os
import pkgutil
from collections.abc import Iterator, Sequence

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import format_count
from recordmill.reader.dataset import Dataset
from recordmill.schemas.feature import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    ITEM_BYTES,
    OPAQUE_BYTES,
    SEQUENCE_EXAMPLE,
    Feature,
    Schema,
)
from recordmill.schemas.tfmd import to_pbtxt
from recordmill.storage.folders import name_exists, real_path
from recordmill.storage.walk import has_wildcard

EMIT_SCHEMA, EMIT_PARSE_SPEC, EMIT_READER = "schema", "parse-spec", "reader"
EMIT_FORMATS = (EMIT_SCHEMA, EMIT_PARSE_SPEC, EMIT_READER)

_DATASET_TEMPLATE = '''

def dataset(split=None, batch_size=256, shuffle_records=0, seed=0):
    """Batches of tensors by feature name, of one split or of all; shuffle_records: how many records are held to draw
    the next one from, 0 for the files' order.
    """
    files = [file for name, files in FILES.items() for file in files if split in (None, name)]
    batches = read_records(files, shuffle_records, seed).batch(batch_size)
    tensors = without_autograph(lambda serialized: parse_records(serialized, %s, TENSORS))
    parsed = batches.map(tensors, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return parsed.prefetch(tf.data.AUTOTUNE)


if __name__ == "__main__":
    for batch in dataset().take(1):
        for name, tensor in batch.items():
            print(name, tensor.dtype.name, tensor.shape)
'''
# dtype of tf.io for each kind of list
_TF_DTYPES = {
    INT64_LIST: "int64",
    FLOAT_LIST: "float32",
    BYTES_LIST: "string",
}
# arguments of `parse_records` for each kind of message; Examples have FEATURES
_SPEC_ARGUMENTS = {
    OPAQUE_BYTES: "None, None",
    SEQUENCE_EXAMPLE: "CONTEXT, FEATURE_LISTS",
}


def emit(output: str, dataset: Dataset, inputs: Sequence[str] = ()) -> str:
    """Returns the description of a data set, with a newline at its end.

    Args:
        output: One of EMIT_FORMATS.
        inputs: The inputs as the user has typed them. Paths in a reader begin in the same way, so
            relative paths stay relative.

    Raises:
        UsageError: The format is unknown, a specification is requested for records that are not
            Examples, or a reader for files that TensorFlow can't read.
    """
    if output not in EMIT_FORMATS:
        raise UsageError(
            "{emit}: must be one of {emit_formats}",
            emit=option("emit", output),
            emit_formats=", ".join(EMIT_FORMATS),
        )
    if output == EMIT_SCHEMA:
        return to_pbtxt(dataset.schema)
    if output == EMIT_PARSE_SPEC:
        if dataset.schema.message == OPAQUE_BYTES:
            raise UsageError(
                "{emit}: the records are not Examples, so they have no features to "
                "parse; {emit2} returns them as bytes",
                emit=option("emit", "parse-spec"),
                emit2=option("emit", "reader"),
            )
        return "import tensorflow as tf\n\n" + "\n".join(_spec_lines(dataset.schema)) + "\n"
    return "\n".join(_reader_lines(dataset, [os.fspath(name) for name in inputs])) + "\n"


def _reader_lines(dataset: Dataset, inputs: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the reader: constants of this data set, then its program.

    The program is the source of `reader.tensorflow.program`.
    """
    schema, program = dataset.schema, _split_program()
    subject = f"{format_count(len(dataset), 'record')} of {format_count(len(dataset.records.catalog.files), 'TFRecord file')}"
    yield f'"""Reads {subject} with tf.data; made by `recordmill inspect --emit reader`."""'
    yield ""
    yield program[0]
    yield ""
    yield from _files_lines(dataset, inputs)
    yield ""
    if schema.message != OPAQUE_BYTES:
        yield from _spec_lines(schema)
        yield ""
    yield "TENSORS = {  # arguments of `tensor_of` that differ from its defaults"
    for feature in schema:
        yield f"    {quote(feature.name)}: {_tensor_arguments(feature) if schema.message != OPAQUE_BYTES else {}},"
    yield "}"
    yield ""
    yield program[1]
    yield (_DATASET_TEMPLATE % _SPEC_ARGUMENTS.get(schema.message, "FEATURES, None")).rstrip()


def _split_program() -> tuple[str, str]:
    """Returns the imports and the rest of the source of `reader.tensorflow.program`.

    The module is not imported, because that would import TensorFlow.
    """
    source = pkgutil.get_data("recordmill.reader.tensorflow", "program.py")
    assert source is not None
    text = source.decode("utf-8")
    # the program begins with a docstring, then imports
    docstring, *nodes = ast.parse(text).body
    body = (
        next(node.lineno for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)) - 1
    )
    lines = text.splitlines()
    return "\n".join(lines[docstring.end_lineno or 0 : body]).strip(), "\n".join(lines[body:])


def _files_lines(dataset: Dataset, inputs: Sequence[str]) -> Iterator[str]:
    yield "FILES = {  # split: [(path, compression, records), ...]"
    files_with_counts = [(file.file, file.records) for file in dataset.files]
    for split in dataset.splits:
        yield f"    {quote(split)}: ["
        for file, records in files_with_counts:
            if file.split != split:
                continue
            if (compression := file.codec.tensorflow_name) is None:
                raise UsageError(
                    "{emit}: {file} is compressed with {compression}, which TensorFlow can't read",
                    emit=option("emit", "reader"),
                    file=file.name,
                    compression=file.compression,
                )
            yield (
                f"        ({quote(restore_typed_path(file.path, inputs))}, {quote(compression)}, {records}),"
            )
        yield "    ],"
    yield "}"


def restore_typed_path(path: str, inputs: Sequence[str]) -> str:
    """Returns a path that begins as the user has typed it.

    If `../x/*.tfrecord` was typed, the path of a file is `../x/a.tfrecord`.

    Args:
        path: Real path of a file.
        inputs: The typed paths and globs.
    """
    for typed in inputs:
        if not name_exists(typed):  # a glob: its folders before the first wildcard
            parts = typed.split("/")
            typed = "/".join(
                parts[: next((i for i, part in enumerate(parts) if has_wildcard(part)), len(parts))]
            )
        # links are resolved in the paths of files, but perhaps not in the typed path
        for prefix in dict.fromkeys((typed, real_path(typed or "."))):
            if path == prefix:
                return typed
            if prefix and path.startswith(prefix.rstrip("/") + "/"):
                return os.path.join(typed, path[len(prefix.rstrip("/")) + 1 :])
    return path


def _spec_lines(schema: Schema) -> Iterator[str]:
    """Yields the lines of the specification.

    SequenceExamples have a specification of the context and one of the steps.
    """
    if schema.message != SEQUENCE_EXAMPLE:
        yield from _dict_lines("FEATURES", list(schema))
        return
    yield from _dict_lines("CONTEXT", [feature for feature in schema if not feature.per_step])
    yield from _dict_lines("FEATURE_LISTS", [feature for feature in schema if feature.per_step])


def _dict_lines(name: str, features: Sequence[Feature]) -> Iterator[str]:
    if not features:
        yield f"{name} = {{}}"
        return
    yield f"{name} = {{"
    for feature in features:
        yield f"    {quote(feature.name)}: {_tf_feature_code(feature)},  # {_feature_comment(feature)}"
        for entry in _row_lengths(feature):
            yield f"    {quote(entry)}: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),"
    yield "}"


def _feature_comment(feature: Feature) -> str:
    """Returns a comment with the properties that the code for tf.io does not show."""
    raw_text = ", as bytes in a string" if feature.raw else ""
    classes = (
        f", classes {json.dumps(feature.classes[:10], ensure_ascii=False)}"
        if feature.classes
        else ""
    )
    ellipsis = ", ..." if feature.classes is not None and len(feature.classes) > 10 else ""
    return f"{feature.describe()}{raw_text}{'' if feature.required else ', or missing'}{classes}{ellipsis}"


def _tf_feature_code(feature: Feature) -> str:
    """Returns the Python code of the tf.io feature that parses a feature."""
    values, *lengths = feature.storage()
    dtype, shape = f"tf.{_TF_DTYPES[feature.kind]}", () if feature.raw else feature.inner_shape
    nested = feature.ragged_rank > 1 and feature.per_step
    if (
        feature.required
        and not lengths
        and not feature.per_step
        and (feature.raw or not feature.ragged_rank)
    ):
        return f"tf.io.FixedLenFeature({list(shape)}, {dtype})"
    kinds = "tf.io.RaggedFeature"
    rows = [] if feature.raw or feature.per_step else [storage.name for storage in lengths]
    parts = ", ".join(
        [
            *(f"{kinds}.RowLengths({quote(name)})" for name in rows),
            *(f"{kinds}.UniformRowLength({size})" for size in (() if nested else shape)),
        ]
    )
    return (
        f"{kinds}({dtype}, value_key={quote(values.name)}, "
        f"{f'partitions=[{parts}], ' if parts else ''}row_splits_dtype=tf.int64)"
    )


def _row_lengths(feature: Feature) -> list[str]:
    """Returns the entries with the lengths of nested lists, outermost first.

    Only features that are stored as raw bytes need them here.
    """
    return (
        [storage.name for storage in feature.storage()[1:]]
        if feature.raw and not feature.per_step
        else []
    )


def _tensor_arguments(feature: Feature) -> dict[str, object]:
    """Returns the arguments of `tensor_of` for a feature. Default values are left out."""
    arguments = {
        "dtype": "int64"
        if feature.timestamp
        else {"bytes": "string"}.get(feature.dtype, feature.dtype),
        "shape": list(feature.inner_shape),
        "ragged_rank": feature.ragged_rank,
        "item_bytes": ITEM_BYTES[feature.dtype] if feature.raw else 0,
        "lengths": _row_lengths(feature),
        "per_step": feature.per_step and feature.raw,
    }
    return {name: value for name, value in arguments.items() if value}


def quote(text: str) -> str:
    r"""Returns a Python string literal, in double quotes if all characters are printable.

    >>> print(quote('a "b"'))
    "a \"b\""
    """
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else repr(text)
