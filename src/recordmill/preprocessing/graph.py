"""Analysis of the graph of a saved transform: the inputs that each output needs, outputs that are inputs passed on, the
constants that the analysers computed, and a digest of all that it computes.

A SavedModel's files hold temporary paths and random numbers, so two fits of equal results differ in them; the digest is
over operations, attributes, constants and vocabularies, numbered in the order in which they are reached.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError, UsageError
from recordmill.base.machine import limit_reached
from recordmill.base.option_names import option
from recordmill.storage.files import read_range
from recordmill.storage.folders import is_folder, names_in

# what names things without deciding what they compute
_NAMES = frozenset({"shared_name", "container", "config_proto", "executor_type"})
FITTED = re.compile(r"(?:.*/)?fitted_(\d+)_([a-z0-9]+)(?:_\d+)?")  # name of the operation that marks a declared result
_UNUSED = re.compile(FITTED.pattern + "_input")  # what is left of it where no output needs the result
# The operations that make values of values and do nothing else; tables are read from the transform's own assets. None
# of them touches another file, a network, or Python.
_OPERATIONS = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 AdjustContrastv2 AdjustHue AdjustSaturation All Any ApproximateEqual ArgMax
    ArgMin AsString Asin Asinh Assert AssignVariableOp Atan Atan2 Atanh BatchMatMul BatchMatMulV2 BatchMatMulV3
    BatchToSpace BatchToSpaceND BiasAdd Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor BroadcastArgs
    BroadcastTo Bucketize Case Cast Ceil ClipByValue Complex ComplexAbs Concat ConcatOffset ConcatV2 Const
    ControlTrigger Conv2D Cos Cosh CropAndResize Cross Cumprod Cumsum CumulativeLogsumexp DecodeAndCropJpeg
    DecodeBase64 DecodeBmp DecodeGif DecodeImage DecodeJpeg DecodePaddedRaw DecodePng DecodeRaw DecodeWebP
    DenseBincount DepthToSpace DepthwiseConv2dNative Dequantize Diag DiagPart Digamma Div DivNoNan
    DrawBoundingBoxesV2 DynamicPartition DynamicStitch EditDistance Einsum Elu Empty EmptyTensorList
    EncodeBase64 EnsureShape Equal Erf Erfc Erfinv EuclideanNorm Exp ExpandDims Expm1 ExtractImagePatches
    ExtractJpegShape FFT FFT2D FakeParam Fill Fingerprint Floor FloorDiv FloorMod FusedBatchNormV3 Gather
    GatherNd GatherV2 GetElementAtIndex Greater GreaterEqual HSVToRGB HashTableV2 HistogramFixedWidth IFFT
    IFFT2D IRFFT Identity IdentityN If Igamma Igammac Imag ImageProjectiveTransformV3 InTopKV2
    InitializeTableFromTextFileV2 InitializeTableV2 Inv Invert InvertPermutation IsFinite IsInf IsNan L2Loss LRN
    LeakyRelu LeftShift Less LessEqual Lgamma LinSpace ListDiff Log Log1p LogSoftmax LogicalAnd LogicalNot
    LogicalOr LookupTableFindV2 LookupTableSizeV2 LowerBound MatMul MatrixBandPart MatrixDiagPartV3 MatrixDiagV3
    MatrixInverse MatrixSetDiagV3 MatrixSolve MatrixTriangularSolve Max MaxPool MaxPoolV2 Maximum Mean Min
    Minimum MirrorPad Mod Mul MulNoNan Multinomial Neg NextAfter NoOp NonMaxSuppressionV3 NotEqual NthElement
    OneHot OnesLike Pack Pad PadV2 ParallelDynamicStitch ParseExampleV2 ParseTensor PartitionedCall Placeholder
    PlaceholderWithDefault Polygamma PopulationCount Pow PreventGradient Prod Qr QuantizeAndDequantizeV4 RFFT
    RGBToHSV RaggedBincount RaggedCross RaggedFillEmptyRows RaggedGather RaggedRange RaggedTensorFromVariant
    RaggedTensorToSparse RaggedTensorToTensor RaggedTensorToVariant RandomShuffle RandomStandardNormal
    RandomUniform RandomUniformInt Range Rank ReadVariableOp Real RealDiv Reciprocal ReduceJoin RegexFullMatch
    RegexReplace Relu Relu6 Reshape ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor Reverse
    ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt ScaleAndTranslate ScatterNd SegmentMax
    SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 Select
    SelectV2 Selu SerializeTensor Shape ShapeN Sigmoid Sign Sin Sinh Size Slice Snapshot Softmax Softplus
    Softsign SpaceToBatch SpaceToBatchND SpaceToDepth SparseAdd SparseBincount SparseConcat SparseCross
    SparseCrossHashed SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul
    SparseFillEmptyRows SparseReduceMax SparseReduceSum SparseReorder SparseReshape SparseSegmentMean
    SparseSegmentSqrtN SparseSegmentSum SparseSlice SparseSoftmax SparseSparseMaximum SparseSparseMinimum
    SparseSplit SparseTensorDenseMatMul SparseToDense Split SplitV Sqrt Square SquaredDifference Squeeze
    StatefulPartitionedCall StatelessCase StatelessIf StatelessMultinomial StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform
    StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessTruncatedNormalV2
    StatelessWhile StaticRegexFullMatch StaticRegexReplace StopGradient StridedSlice StringFormat StringJoin
    StringLength StringLower StringNGrams StringSplit StringSplitV2 StringStrip StringToHashBucket
    StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Sub Substr Sum Svd Tan Tanh
    TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem
    TensorListLength TensorListPushBack TensorListReserve TensorListResize TensorListSetItem TensorListStack
    TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate Tile TopKV2
    Transpose TruncateDiv TruncateMod UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript
    UnicodeTranscode Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex UnsortedSegmentJoin
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound VarHandleOp
    VarIsInitializedOp Where While Xdivy Xlog1py Xlogy ZerosLike Zeta
    """.split()  # noqa: SIM905 as a list it would fill pages
)
_MODEL, _PARTS = "saved_model.pb", {"saved_model.pb", "assets", "variables", "fingerprint.pb"}
_NAME = re.compile(r"(?!\.{1,2}$)[^/\0]+")  # of a file in a folder
_OBJECTS = {"_generic_user_object", "signature_map", "trackable_dict_wrapper", "trackable_list_wrapper"}


class GraphError(DataError):
    """TensorFlow can't load a saved transform; the cause is what it came upon."""


def load_graph(folder: str) -> Any:
    """The saved transform in `folder/transform_fn`: an object whose `transform_fn` is the function.

    Raises:
        GraphError: TensorFlow can't load it. DataError: it has no such function.
    """
    import tensorflow as tf

    model = os.path.join(folder, "transform_fn")
    try:
        loaded = tf.saved_model.load(model)
    except Exception as error:  # of a damaged one TensorFlow raises what it comes upon: KeyError, IndexError, OpError
        if limit_reached(error) is not None:
            raise
        reason = f"TensorFlow can't load it: {type(error).__name__}: {error}".partition("\n")[0][:250]
        raise GraphError(reason, source=model) from error
    if not callable(getattr(loaded, "transform_fn", None)):
        raise DataError("has no function called transform_fn", source=model)
    return loaded


def check_graph(folder: str, trusted: bool) -> None:
    """Raises UsageError for a saved transform that could do more, once it is loaded or run, than make values of values,
    unless it is trusted; DataError for what is none.
    """
    if not trusted and (unknown := sorted(set(_unknown_parts(os.path.join(folder, "transform_fn"))))):
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise UsageError(
            f"{folder}: the graph of the transform has {', '.join(unknown[:5])}{more}, which may touch files or run "
            f"code, not only compute. If you trust whoever made it, give {option('trust_graph', True)}"
        )


def _unknown_parts(model: str) -> Iterator[str]:
    """Yields the parts of a SavedModel that are not known to be harmless."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    yield from {*names_in(model)} - _PARTS  # other forms of a model, which TensorFlow would prefer
    try:
        saved = SavedModel.FromString(read_range(os.path.join(model, _MODEL)).tobytes())
    except (DecodeError, FileNotFoundError):
        raise DataError("is no SavedModel", source=os.path.join(model, _MODEL)) from None
    for graph in saved.meta_graphs:
        if not graph.HasField("object_graph_def"):
            yield "a graph of TensorFlow 1"
        yield from (repr(one.filename) for one in graph.asset_file_def if not _NAME.fullmatch(one.filename))
        for node in graph.object_graph_def.nodes:
            if node.HasField("user_object") and node.user_object.identifier not in _OBJECTS:
                yield node.user_object.identifier
            if node.registered_saver or not (node.registered_name or "tf.").startswith("tf."):
                yield node.registered_saver or node.registered_name
        yield from _unknown_operations(graph)


def _unknown_operations(graph: Any) -> Iterator[str]:
    """The operations of all functions that loading or applying a SavedModel may run. Those by which TensorFlow would
    save it again, and the graph of signatures, are not run.
    """
    functions = {one.signature.name: one for one in graph.graph_def.library.function}
    objects = graph.object_graph_def
    left = [
        *objects.concrete_functions,
        *(node.bare_concrete_function.concrete_function_name for node in objects.nodes),
    ]
    left += [name for node in objects.nodes for name in node.function.concrete_functions]
    seen: set[str] = set()
    while left:
        name = left.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for node in functions[name].node_def:
            if node.op in functions:
                left.append(node.op)
            elif node.op not in _OPERATIONS:
                yield node.op
            elif node.op == "InitializeTableFromTextFileV2" and not _reads_asset(node, functions[name], objects):
                yield f"{node.op} of a file that is none of its own"
            for value in node.attr.values():
                left.extend(one.name for one in (value.func, *value.list.func) if one.name)


def _reads_asset(node: Any, function: Any, objects: Any) -> bool:
    """Returns whether the file that a table is read from is an asset, which the function got with the graph."""
    bound = objects.concrete_functions[function.signature.name].bound_inputs
    arguments = [argument.name for argument in function.signature.input_arg]
    given = dict(zip(reversed(arguments), reversed(bound), strict=False))
    number = given.get(node.input[1], -1) if len(node.input) > 1 else -1
    return 0 <= number < len(objects.nodes) and bool(objects.nodes[number].HasField("asset"))


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

    def sparse_like(self, output: str) -> str | None:
        """The input in whose places the values of a SparseTensor stand; None if it has places of its own."""
        place = self._input_of.get(_root(self.outputs[output][0].op).name)
        return place[0] if place is not None and place[1] == 0 else None

    def constants(self) -> dict[str, Any]:
        """Returns what the analysers computed, by the operation that uses it, without tables."""
        arrays = {}
        for name, value in self._captured.items():
            if value.dtype.name not in ("resource", "variant"):
                array = _array(value)
                if array.dtype != object or array.shape or not _asset_name(array.item()):
                    arrays[name] = array
        return arrays

    def fitted(self) -> dict[tuple[int, str], Any]:
        """Returns (number of the column, name of the result) to its value, of operations named `fitted_NUMBER_NAME`."""
        results = {}
        for op in self._graph.get_operations():
            match = FITTED.fullmatch(op.name)
            if match and op.type == "Identity" and (value := self._constant(op.inputs[0].op)) is not None:
                results[int(match[1]), match[2]] = value
        for name, value in self._captured.items():
            if match := _UNUSED.fullmatch(name):
                results.setdefault((int(match[1]), match[2]), value.numpy())
        return results

    def _constant(self, op: Any) -> Any:
        """Returns what an analyser computed, as it is or 0 - it, as tf.Transform computes a minimum; None: anything
        else.
        """
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
    components: dict[str, list[Any]] = {}
    place = 0
    for name in sorted(structure):
        count = len(tf.nest.flatten(structure[name], expand_composites=True))
        components[name] = list(tensors[place : place + count])
        place += count
    return components


def _root(op: Any) -> Any:
    while op.type == "Identity":
        op = op.inputs[0].op
    return op


def _ordered(ops: Sequence[Any], control: bool = True) -> Iterator[Any]:
    """Yields these operations and all that they need: each once, after those that it takes values of.

    Args:
        ops: the operations.
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
    array = _array(value)
    if array.dtype == object and not array.shape and (name := _asset_name(array.item())):
        return name  # whose content is digested, wherever it lies
    data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return repr((str(array.dtype), array.shape)).encode() + bytes(data)


def _array(value: Any) -> npt.NDArray[Any]:
    """A tensor as an array, which TensorFlow does not make of a single text."""
    return np.asarray(value.numpy(), object if value.dtype.name == "string" else None)


def _asset_name(text: Any) -> bytes:
    """The name of the asset that a path leads to; empty if it leads to none."""
    return bytes(text).rpartition(b"/transform_fn/assets/")[2] if b"/transform_fn/assets/" in text else b""


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
