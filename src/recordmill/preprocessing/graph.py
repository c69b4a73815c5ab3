"""Analysis of the TensorFlow graph of a saved transform.

It finds the inputs that each output needs, the outputs that are unchanged inputs, and the constants
that the analyzers computed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.base.machine import find_exhausted_limit
from recordmill.storage.folders import list_names_if_present

# Name of an operation that marks the result of a declared step: column number and result.
FITTED_OPERATION = re.compile(r"(?:.*/)?fitted_(\d+)_([a-z0-9]+)(?:_\d+)?")
# Name of the input of such an operation. It remains in the graph if no output needs the result.
_UNUSED_OPERATION = re.compile(FITTED_OPERATION.pattern + "_input")


class GraphError(DataError):
    """TensorFlow can't load a saved transform.

    The `__cause__` is TensorFlow's error.
    """


def load_graph(folder: str) -> Any:
    """Loads the saved model in `folder/transform_fn`.

    Returns:
        An object with the function as its attribute `transform_fn`.

    Raises:
        GraphError: TensorFlow can't load the model.
        DataError: The model has no function `transform_fn`.
    """
    import tensorflow as tf

    model = os.path.join(folder, "transform_fn")
    try:
        loaded = tf.saved_model.load(model)
    except Exception as error:
        # For a damaged model TensorFlow raises all kinds of errors: KeyError, IndexError, OpError.
        # If the machine has exhausted a limit, the model itself may be intact.
        if find_exhausted_limit(error) is not None:
            raise
        reason = f"TensorFlow can't load it: {type(error).__name__}: {error}".partition("\n")[0][
            :250
        ]
        raise GraphError(reason, source=model) from error
    if not callable(getattr(loaded, "transform_fn", None)):
        raise DataError("has no function called transform_fn", source=model)
    return loaded


class TransformGraph:
    """The traced function of a saved transform.

    Args:
        function: The function `transform_fn` of a loaded model.

    Attributes:
        inputs: The tensors of each input, by the name of the input. A SparseTensor or RaggedTensor
            consists of several tensors.
        outputs: The tensors of each output, by the name of the output.
        specs: The TypeSpec of each output, by the name of the output.
    """

    def __init__(self, function: Any) -> None:
        import tensorflow as tf

        self._graph = function.graph
        # The last inputs of the graph are constants and tables that the function has captured.
        captured = list(function.captured_inputs)
        arguments = self._graph.inputs[: len(self._graph.inputs) - len(captured)]
        self._captured = dict(
            zip(
                (tensor.op.name for tensor in self._graph.inputs[len(arguments) :]),
                captured,
                strict=True,
            )
        )
        specs = function.structured_input_signature[0][0]
        self.inputs = _components(tf, specs, arguments)
        self.outputs = _components(tf, function.structured_outputs, self._graph.outputs)
        self.specs = {name: function.structured_outputs[name] for name in self.outputs}
        self._inputs_by_operation = {
            tensor.op.name: (name, component)
            for name, tensors in self.inputs.items()
            for component, tensor in enumerate(tensors)
        }

    def find_inputs(self, output: str) -> set[str]:
        """Returns the names of the inputs that an output depends on."""
        reached = _iter_ancestors([tensor.op for tensor in self.outputs[output]])
        return {
            self._inputs_by_operation[op.name][0]
            for op in reached
            if op.name in self._inputs_by_operation
        }

    def find_passed_input(self, output: str) -> str | None:
        """Returns the name of the input that an output returns unchanged.

        None if there is no such input.
        """
        components = [
            self._inputs_by_operation.get(_skip_identities(tensor.op).name)
            for tensor in self.outputs[output]
        ]
        names = {component[0] if component else None for component in components}
        is_complete = [component[1] if component else -1 for component in components] == list(
            range(len(components))
        )
        name = names.pop() if len(names) == 1 else None
        return (
            name
            if name is not None and is_complete and len(self.inputs[name]) == len(components)
            else None
        )

    def find_sparse_source(self, output: str) -> str | None:
        """Returns the name of the input with the same indices as a sparse output.

        The output then has one value wherever the input has one. Returns None if there is no such
        input.
        """
        component = self._inputs_by_operation.get(_skip_identities(self.outputs[output][0].op).name)
        return component[0] if component is not None and component[1] == 0 else None

    def read_constants(self) -> dict[str, Any]:
        """Returns the constants that the analyzers computed.

        The key is the name of the operation that uses the constant. Lookup tables and paths of
        asset files are left out.
        """
        arrays = {}
        for name, value in self._captured.items():
            if value.dtype.name not in ("resource", "variant"):
                array = _to_array(value)
                if array.dtype != object or array.shape or not _asset_name(array.item()):
                    arrays[name] = array
        return arrays

    def read_fitted_values(self) -> dict[tuple[int, str], Any]:
        """Returns the results of the analyzers of a declared transform.

        Each result is a constant of the graph. The name of its operation is `fitted_NUMBER_NAME`.

        Returns:
            The values, by (index of the declared column, name of the result).
        """
        results = {}
        for op in self._graph.get_operations():
            match = FITTED_OPERATION.fullmatch(op.name)
            if (
                match
                and op.type == "Identity"
                and (value := self._fold_constant(op.inputs[0].op)) is not None
            ):
                results[int(match[1]), match[2]] = value
        for name, value in self._captured.items():
            if match := _UNUSED_OPERATION.fullmatch(name):
                results.setdefault((int(match[1]), match[2]), value.numpy())
        return results

    def _fold_constant(self, op: Any) -> Any:
        """Returns the value of an operation if it is a constant, else None.

        A difference of constants is a constant, too. tf.Transform computes a minimum as such a
        difference.
        """
        if op.name in self._captured:
            return self._captured[op.name].numpy()
        if op.type == "Const":
            import tensorflow as tf

            return tf.make_ndarray(op.get_attr("value"))
        if op.type not in ("Identity", "Sub"):
            return None
        values = [self._fold_constant(tensor.op) for tensor in op.inputs]
        if any(value is None for value in values):
            return None
        return values[0] if op.type == "Identity" else values[0] - values[1]


def list_vocabulary_files(folder: str) -> list[str]:
    """Returns the paths of the vocabularies of a saved transform.

    A vocabulary has one word per line.
    """
    assets = os.path.join(folder, "transform_fn", "assets")
    return [os.path.join(assets, name) for name in list_names_if_present(assets)]


def _components(tf: Any, structure: Any, tensors: Sequence[Any]) -> dict[str, list[Any]]:
    components: dict[str, list[Any]] = {}
    offset = 0
    for name in sorted(structure):
        count = len(tf.nest.flatten(structure[name], expand_composites=True))
        components[name] = list(tensors[offset : offset + count])
        offset += count
    return components


def _skip_identities(op: Any) -> Any:
    while op.type == "Identity":
        op = op.inputs[0].op
    return op


def _iter_ancestors(ops: Sequence[Any]) -> Iterator[Any]:
    """Yields some operations and all operations that they depend on, each once."""
    visited, pending = set[str](), [*ops]
    while pending:
        op = pending.pop()
        if op.name not in visited:
            visited.add(op.name)
            pending.extend(tensor.op for tensor in op.inputs)
            yield op


def _to_array(value: Any) -> npt.NDArray[Any]:
    """Converts a tensor to an array. A string becomes an array of dtype object.

    `numpy()` alone does not return an array for a scalar string.
    """
    return np.asarray(value.numpy(), object if value.dtype.name == "string" else None)


def _asset_name(text: Any) -> bytes:
    """Returns the file name in the path of an asset.

    The result is b"" for any other text.
    """
    return (
        bytes(text).rpartition(b"/transform_fn/assets/")[2]
        if b"/transform_fn/assets/" in text
        else b""
    )
