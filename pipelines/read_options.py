"""The options of a read, checked once.

Texts for conversions, such as `image=float32[64,64,3]`, `boxes=[-1,4]` or `tokens=128:0`, become
steps of `records.columns.convert`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import parse_image_size, parse_size, to_whole_number
from recordmill.exporting.infer_conversions import (
    UnresolvedImages,
    UnresolvedStep,
    UnresolvedTensor,
)
from recordmill.exporting.plan import ReadOptions, choose_threads
from recordmill.options.commands import check_applicable, fill_defaults, keywords_of
from recordmill.pipelines.beam_run import as_flags
from recordmill.records.columns import conversions
from recordmill.records.columns.convert import ConversionStep, DecodeRaw, DecodeTensor
from recordmill.records.columns.decode_images import CHANNELS
from recordmill.records.columns.predicate import Predicate
from recordmill.records.writers.outputs import find_output
from recordmill.schemas.feature import ITEM_BYTES, Schema
from recordmill.shards.loading.schema_hints import load_schema
from recordmill.shards.rejects import RejectBudget

_MAX_RESIZED_PIXELS = 1 << 24  # 16 million pixels


def parse_steps(
    *,
    decode_tensor: conversions.Specs = None,
    decode_raw: conversions.Specs = None,
    reshape: conversions.Specs = None,
    pad: conversions.Specs = None,
    pad_or_cut: conversions.Specs = None,
    ragged: conversions.Specs = None,
) -> tuple[ConversionStep | UnresolvedStep, ...]:
    """Parses the texts of conversions into steps in the order of application.

    Features are first decoded, then reshaped, then padded or made ragged.

    Raises:
        UsageError: A conversion is malformed, or a feature has two of the same kind.
    """
    tensors = [
        *map(_parse_tensor_spec, conversions.normalize_specs(decode_tensor, "decode_tensor"))
    ]
    steps = conversions.parse_conversion_steps(decode_raw, reshape, pad, pad_or_cut, ragged)
    raw = [step for step in steps if isinstance(step, DecodeRaw)]
    conversions.check_converted_once([step.feature for step in (*tensors, *raw)], "decoded")
    return (*tensors, *steps)


def parse_images(
    features: Sequence[str] | str | bool | None,
    resize: str | tuple[int, int] | None,
    channels: int | None,
    *,
    ragged: bool,
) -> tuple[UnresolvedImages, ...]:
    """Parses the options for decoding images.

    Args:
        features: Names of the features, also as one string with commas. True means all features
            that contain images. None, "" and False mean none.
        resize: The size of the decoded images, (height, width) or a text such as `224x224`. None
            keeps the size of each image.
        channels: The number of channels: 1, 3 or 4. None means 3.
        ragged: The output format can contain images of different sizes.

    Raises:
        UsageError: A size or number of channels is not supported, or is set without `features`.
    """
    if not features:
        if resize is not None or channels is not None:
            raise UsageError(
                "{option} needs {decode_images}",
                option=option("channels" if resize is None else "resize"),
                decode_images=option("decode_images", True),
            )
        return ()
    channels = 3 if channels is None else channels
    if channels not in CHANNELS:
        raise UsageError(
            "{channels}: 1 (gray), 3 (RGB) or 4 (RGBA)", channels=option("channels", channels)
        )
    size = None if resize is None else parse_image_size(resize)
    if size is not None and not (min(size) > 0 and size[0] * size[1] <= _MAX_RESIZED_PIXELS):
        raise UsageError(
            "{resize}: 1 to {max_resized_pixels} pixels",
            resize=option("resize", resize),
            max_resized_pixels=_MAX_RESIZED_PIXELS,
        )
    if features is True:
        return (UnresolvedImages(None, size, channels, ragged),)
    names = features.split(",") if isinstance(features, str) else features
    return tuple(
        UnresolvedImages(name.strip(), size, channels, ragged) for name in dict.fromkeys(names)
    )


def _parse_tensor_spec(text: str) -> DecodeTensor | UnresolvedTensor:
    """Parses an item of `decode_tensor`: a feature, or a text such as `depth=float32[-1,4]`.

    Returns:
        An UnresolvedTensor if the text has no dtype and shape. They are inferred later.

    Raises:
        UsageError: The text has another form.
    """
    match = conversions.parse_typed_spec(text)
    if match is None:
        return UnresolvedTensor(text)
    if match[1] or match[2] not in ITEM_BYTES:
        raise UsageError(
            "{decode_tensor}: FEATURE, or FEATURE=DTYPE[SHAPE] as in "
            "depth=float32[-1,4]; {conversion_dtypes}",
            decode_tensor=option("decode_tensor", text),
            conversion_dtypes=conversions.CONVERSION_DTYPES,
        )
    return DecodeTensor(
        match[0], match[2], conversions.parse_shape(match[3] or "", option("decode_tensor", text))
    )


_STEP_OPTIONS = ("decode_tensor", "decode_raw", "reshape", "pad", "pad_or_cut", "ragged")


@dataclass(frozen=True)
class ReadSettings:
    """The checked options of a read.

    Only `plan` determines the bytes of the outputs.

    Attributes:
        plan: The options that determine the outputs.
        budget: The number of rejects that are allowed.
        schema: The schema of the inputs. None infers it.
        threads: Number of threads.
        memory_bytes: The memory of the read.
        overwrite: Replaces existing outputs.
        runner: The Beam runner. None reads on threads of this process.
        beam_args: Flags for Beam and the job server.
        preflight: Checks an engine before the job is submitted.
        storage_requests: Maximum number of concurrent store requests, or None for the default.
    """

    plan: ReadOptions
    budget: RejectBudget
    schema: Schema | None
    threads: int
    memory_bytes: int
    overwrite: bool
    runner: str | None
    beam_args: tuple[str, ...]
    preflight: bool = True
    storage_requests: int | None = None


def make_settings(**options: Any) -> ReadSettings:
    """Checks the options of a read.

    Args:
        **options: The options of the command line or of `recordmill.read`.

    Raises:
        UsageError: A value is invalid.
        TypeError: There is no such option.
    """
    values = fill_defaults("read", options)
    output = find_output(values.to)
    check_applicable("read", options, output=output.name)
    budget = RejectBudget.parse(values.max_rejects)
    images = parse_images(
        values.decode_images, values.resize, values.channels, ragged=output.holds_ragged
    )
    steps = {name: getattr(values, name) for name in _STEP_OPTIONS}
    plan = ReadOptions(
        to=values.to,
        columns=_parse_columns(values.columns),
        split=values.split,
        limit=None if values.limit is None else to_whole_number(values.limit, "limit"),
        file_bytes=parse_size(values.file_size, "file_size"),
        # The default budget allows no rejects, so the first bad record ends the read.
        lenient=budget != RejectBudget(),
        steps=images + parse_steps(**steps),
        class_names=values.class_names,
        where=None if values.where is None else Predicate(values.where),
        sample=values.sample,
        seed=to_whole_number(values.seed, "seed"),
        output_options=output.parse_options(
            {
                one.name: getattr(values, one.name)
                for one in keywords_of("read")
                if output.name in one.outputs
            }
        ),
    )
    threads, memory_bytes = _parse_threads_and_memory(values.threads or 0, values.memory)
    return ReadSettings(
        plan,
        budget,
        load_schema(values.schema),
        threads,
        memory_bytes,
        values.overwrite,
        values.runner,
        as_flags(values.beam_args),
        values.preflight,
        values.storage_requests,
    )


def _parse_threads_and_memory(threads: int, memory: str | int) -> tuple[int, int]:
    """Returns (number of threads, bytes of memory)."""
    threads = to_whole_number(threads, "threads")
    if threads < 0:
        raise UsageError("{threads}: 0 (one per core) or more", threads=option("threads", threads))
    memory_bytes = parse_size(memory, "memory")
    return choose_threads(threads, memory_bytes), memory_bytes


def _parse_columns(columns: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    names = (
        tuple(name.strip() for name in columns.split(","))
        if isinstance(columns, str)
        else tuple(columns)
    )
    if not names or "" in names:
        raise UsageError(
            "{columns}: names with commas between them", columns=option("columns", columns)
        )
    if len(set(names)) < len(names):
        raise UsageError("{columns}: a feature is named twice", columns=option("columns", columns))
    return names
