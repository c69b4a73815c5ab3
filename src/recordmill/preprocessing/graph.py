"""What the graph of a saved transform says: which inputs each output needs, which outputs are inputs passed on, the
constants that the analysers found, and a digest of all that it computes.

A SavedModel's files hold temporary paths and random numbers, so two fits of equal results differ in them; the digest is
over operations, attributes, constants and vocabularies, numbered in the order in which they are reached.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from recordmill.storage.files import read_range
from recordmill.storage.folders import is_folder, names_in

# what names things without deciding what they compute
_NAMES = frozenset({"shared_name", "container", "config_proto", "executor_type"})
FITTED = re.compile(r"(?:.*/)?fitted_(\d+)_([a-z0-9]+)(?:_\d+)?")  # name of the operation that marks a declared result


def load_graph(folder: str) -> Any:
    """The saved transform in `folder/transform_fn`: an object whose `transform_fn` is the function."""
    import tensorflow as tf

    return tf.saved_model.load(os.path.join(folder, "transform_fn"))


class TransformGraph:
    """The traced function of a saved transform. inputs, outputs: names in order, with a tensor per component."""

    def __init__(self, function: Any) -> None:
        import tensorflow as tf

        self._graph = function.graph
        captured = list(function.captured_inputs)
        given = self._graph.inputs[: len(self._graph.inputs) - len(captured)]
        self._captured = dict(zip((t.op.name for t in self._graph.inputs[len(given) :]), captured, strict=True))
        specs = function.structured_input_signature[0][0]
        self.inputs = _components(tf, specs, given)
        self.outputs = _components(tf, function.structured_outputs, self._graph.outputs)
        self.specs = {name: function.structured_outputs[name] for name in self.outputs}
        self._input_of = {t.op.name: (name, place) for name, ts in self.inputs.items() for place, t in enumerate(ts)}

    def needs(self, output: str) -> set[str]:
        """The inputs that an output depends on."""
        reached = _ordered([tensor.op for tensor in self.outputs[output]], control=False)
        return {self._input_of[op.name][0] for op in reached if op.name in self._input_of}

    def passed_on(self, output: str) -> str | None:
        """The input that an output is, unchanged; None if it is anything else."""
        roots = [self._input_of.get(_root(tensor.op).name) for tensor in self.outputs[output]]
        names = {root[0] if root else None for root in roots}
        whole = [root[1] if root else -1 for root in roots] == list(range(len(roots)))
        name = names.pop() if len(names) == 1 else None
        return name if name is not None and whole and len(self.inputs[name]) == len(roots) else None

    def constants(self) -> dict[str, Any]:
        """What the analysers found, by the operation that uses it; tables are left out."""
        found = {}
        for name, value in self._captured.items():
            if value.dtype.name not in ("resource", "variant"):
                found[name] = value.numpy()
        return found

    def fitted(self) -> dict[tuple[int, str], Any]:
        """(number of the column, name of the result) to its value, of operations named `fitted_NUMBER_NAME`."""
        found = {}
        for op in self._graph.get_operations():
            match = FITTED.fullmatch(op.name)
            if match and op.type == "Identity" and (value := self._constant(op.inputs[0].op)) is not None:
                found[int(match[1]), match[2]] = value
        return found

    def _constant(self, op: Any) -> Any:
        """What an analyser found, as it is or 0 - it, as tf.Transform finds a minimum; None: anything else."""
        if op.name in self._captured:
            return self._captured[op.name].numpy()
        if op.type == "Const":
            import tensorflow as tf

            return tf.make_ndarray(op.get_attr("value"))
        if op.type not in ("Identity", "Sub"):
            return None
        values = [self._constant(tensor.op) for tensor in op.inputs]
        if any(value is None for value in values):
            return None
        return values[0] if op.type == "Identity" else values[0] - values[1]

    def describe(self) -> Iterator[bytes]:
        """The operations, each as the number of what it takes and all that decides what it computes."""
        functions = {one.signature.name: one for one in self._graph.as_graph_def().library.function}
        numbers: dict[str, int] = {}
        for op in _ordered([tensor.op for tensors in self.outputs.values() for tensor in tensors]):
            numbers[op.name] = len(numbers)
            if op.name in self._input_of:
                yield repr(("input", *self._input_of[op.name])).encode()
                continue
            taken = [(numbers[tensor.op.name], tensor.value_index) for tensor in op.inputs]
            yield repr((op.type, taken)).encode()
            if op.name in self._captured:
                yield _value_bytes(self._captured[op.name])
            else:
                yield from _attributes(op.node_def, functions)


def digest_graph(folder: str, graph: TransformGraph, schema_texts: Sequence[str]) -> str:
    """SHA-256 over all that decides what the saved transform makes of a row: operations, constants, vocabularies, and
    these schemas.
    """
    digest = hashlib.sha256()
    for text in schema_texts:
        _add(digest, text.encode())
    for part in graph.describe():
        _add(digest, part)
    for path in vocabulary_files(folder):
        _add(digest, os.path.basename(path).encode())
        _add(digest, read_range(path).tobytes())
    return digest.hexdigest()


def vocabulary_files(folder: str) -> list[str]:
    """The files of the saved transform that hold vocabularies, a word a line."""
    assets = os.path.join(folder, "transform_fn", "assets")
    return [os.path.join(assets, name) for name in names_in(assets)] if is_folder(assets) else []


def _add(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little") + part)


def _components(tf: Any, structure: Any, tensors: Sequence[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    place = 0
    for name in sorted(structure):
        count = len(tf.nest.flatten(structure[name], expand_composites=True))
        found[name] = list(tensors[place : place + count])
        place += count
    return found


def _root(op: Any) -> Any:
    while op.type == "Identity":
        op = op.inputs[0].op
    return op


def _ordered(ops: Sequence[Any], control: bool = True) -> Iterator[Any]:
    """All operations that these need, and they themselves: each once, after those that it takes values of.

    control: with those that must only have run before, as assertions do.
    """
    seen: set[str] = set()
    waiting = [(op, False) for op in reversed(ops)]
    while waiting:
        op, is_done = waiting.pop()
        if is_done:
            yield op
        elif op.name not in seen:
            seen.add(op.name)
            waiting.append((op, True))
            before = [tensor.op for tensor in op.inputs]
            before += sorted(op.control_inputs, key=lambda one: str(one.name)) if control else []
            waiting.extend((one, False) for one in reversed(before))


def _value_bytes(value: Any) -> bytes:
    if value.dtype.name in ("resource", "variant"):
        return str(value.dtype.name).encode()
    array = value.numpy()
    data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return repr((str(array.dtype), array.shape)).encode() + bytes(data)


def _attributes(node: Any, functions: dict[str, Any]) -> Iterator[bytes]:
    for key in sorted(node.attr):
        if key.startswith("_") or key in _NAMES:
            continue
        value = node.attr[key]
        if value.HasField("func"):
            yield f"{key} function".encode()
            yield from _function(functions[value.func.name], functions)
        else:
            yield key.encode() + value.SerializeToString(deterministic=True)


def _function(definition: Any, functions: dict[str, Any]) -> Iterator[bytes]:
    """A function's body, its nodes numbered in their order."""
    names = {arg.name: f"argument {i}" for i, arg in enumerate(definition.signature.input_arg)}
    names.update({node.name: f"node {i}" for i, node in enumerate(definition.node_def)})
    for node in definition.node_def:
        taken = [":".join([names.get(part.split(":")[0], part), *part.split(":")[1:]]) for part in node.input]
        yield repr((node.op, [one for one in taken if not one.startswith("^")])).encode()
        yield from _attributes(node, functions)
    for arg in definition.signature.output_arg:
        part = definition.ret[arg.name]
        yield ":".join([names.get(part.split(":")[0], part), *part.split(":")[1:]]).encode()
