"""A SavedModel as it is to be published: without the folders of the run that made it, and with the same bytes whenever
the same graph was made.

Functions are called by how many were made in the process before them, and tables by the path of their vocabulary; both
become names that the content gives. Tables of one name are one table in a process, so that a vocabulary's digest stands
in it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recordmill.storage.files import read_range, replace_file, write_all
from recordmill.storage.folders import is_folder, paths_in

_NUMBERED = re.compile(r"(__(?:inference|forward|backward)_.*?)_(\d+)")
_TENSOR = "_user_specified_name"
MODEL = "saved_model.pb"


def make_portable(model: Path, folder: str) -> None:
    """Rewrite the SavedModel in this folder. folder: of the run, in which the analysis had its files."""
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
    """Put messages whose order says nothing into one that is always the same."""
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
    """Put `plain` of it in place of every text in the message."""
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
