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
from recordmill.base.sizes import parse_image_size
from recordmill.exporting.infer_conversions import (
    UnresolvedImages,
    UnresolvedStep,
    UnresolvedTensor,
)
from recordmill.exporting.plan import ReadOptions, choose_threads
from recordmill.options.calls import Values
from recordmill.options.read import (
    ReadConversions,
    ReadOutput,
    ReadRunOptions,
    ReadSchemas,
    ReadSelection,
)
from recordmill.records.columns import conversions
from recordmill.records.columns.convert import ConversionStep, DecodeRaw, DecodeTensor
from recordmill.records.columns.decode_images import CHANNELS
from recordmill.records.writers.outputs import find_output
from recordmill.schemas.feature import ITEM_BYTES, Schema
from recordmill.shards.loading.schema_hints import load_schema
from recordmill.shards.rejects import RejectBudget

_MAX_RESIZED_PIXELS = 1 << 24  # 16 million pixels


def parse_steps(options: ReadConversions) -> tuple[ConversionStep | UnresolvedStep, ...]:
    """Parses the texts of conversions into steps in the order of application.

    Features are first decoded, then reshaped, then padded or made ragged.

    Raises:
        UsageError: A conversion is malformed, or a feature has two of the same kind.
    """
    tensors = [
        *map(
            _parse_tensor_spec,
            conversions.normalize_specs(options.decode_tensor, "decode_tensor"),
        )
    ]
    steps = conversions.parse_conversion_steps(
        options.decode_raw, options.reshape, options.pad, options.pad_or_cut, options.ragged
    )
    raw = [step for step in steps if isinstance(step, DecodeRaw)]
    conversions.check_converted_once([step.feature for step in (*tensors, *raw)], "decoded")
    return (*tensors, *steps)


def parse_images(options: ReadConversions, *, ragged: bool) -> tuple[UnresolvedImages, ...]:
    """Parses the options for decoding images.

    Args:
        options: The options.
        ragged: Whether the output format can contain images of different sizes.

    Raises:
        UsageError: A size or number of channels is not supported, or is set without `features`.
    """
    features, resize = options.decode_images, options.resize
    if not features:
        if resize is not None or options.channels is not None:
            raise UsageError(
                "{option} needs {decode_images}",
                option=option("channels" if resize is None else "resize"),
                decode_images=option("decode_images", True),
            )
        return ()
    channels = 3 if options.channels is None else options.channels
    if channels not in CHANNELS:
        raise UsageError(
            "{channels}: must be 1 (gray), 3 (RGB) or 4 (RGBA)",
            channels=option("channels", channels),
        )
    size = None if resize is None else parse_image_size(resize)
    if size is not None and not (min(size) > 0 and size[0] * size[1] <= _MAX_RESIZED_PIXELS):
        raise UsageError(
            "{resize}: the size must be 1 to {max_resized_pixels} pixels",
            resize=option("resize", resize),
            max_resized_pixels=_MAX_RESIZED_PIXELS,
        )
    if features is True:
        return (UnresolvedImages(None, size, channels, ragged),)
    if not isinstance(features, str | Sequence):
        raise UsageError(
            "{decode_images}: give True, or the names of features",
            decode_images=option("decode_images", features),
        )
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
            "{decode_tensor}: write FEATURE, or FEATURE=DTYPE[SHAPE] as in "
            "depth=float32[-1,4]; {conversion_dtypes}",
            decode_tensor=option("decode_tensor", text),
            conversion_dtypes=conversions.CONVERSION_DTYPES,
        )
    return DecodeTensor(
        match[0], match[2], conversions.parse_shape(match[3] or "", option("decode_tensor", text))
    )


@dataclass(frozen=True)
class ReadSettings:
    """The checked options of a read, with values derived from them.

    Only `plan` determines the bytes of the outputs.

    Attributes:
        values: The parsed options.
        plan: The options that determine the outputs.
        budget: The number of rejects that are allowed.
        schema: The schema of the inputs. If None, it is inferred.
        threads: The number of threads that the memory allows.
    """

    values: Values
    plan: ReadOptions
    budget: RejectBudget
    schema: Schema | None
    threads: int

    @property
    def overwrite(self) -> bool:
        """Whether existing outputs are replaced."""
        return self.values[ReadOutput].overwrite

    @property
    def run(self) -> ReadRunOptions:
        """The options of the run. Without a runner, threads of this process read."""
        return self.values[ReadRunOptions]


def make_settings(**options: Any) -> ReadSettings:
    """Checks the options of a read, and returns them.

    Args:
        **options: The options of the command line or of `recordmill.read`.

    Raises:
        UsageError: A value is invalid.
        TypeError: There is no such option.
    """
    values = Values("read", options)
    output, conversions = values[ReadOutput], values[ReadConversions]
    schemas, run = values[ReadSchemas], values[ReadRunOptions]
    output_format = find_output(output.to)
    format_options = values.plugin(output_format.name)
    budget = RejectBudget.parse(schemas.max_rejects)
    images = parse_images(conversions, ragged=output_format.holds_ragged)
    plan = ReadOptions(
        output=output,
        selection=values[ReadSelection],
        conversions=conversions,
        steps=(*images, *parse_steps(conversions)),
        # The default budget allows no rejects, so the first bad record ends the read.
        lenient=budget != RejectBudget(),
        format_options=format_options,
    )
    return ReadSettings(
        values=values,
        plan=plan,
        budget=budget,
        schema=load_schema(schemas.schema),
        threads=choose_threads(run.threads or 0, run.memory),
    )
