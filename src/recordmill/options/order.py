"""Options of a build for the order of records and their splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.options.declare import Options, declare
from recordmill.options.parsers import parse_whole
from recordmill.schemas.splits import check_split_name

_WITHOUT_SHUFFLE = (("shuffle", False),)
_WITH_SPLITS = (("splits", None),)
_SPLITS_SYNTAX = "NAME=FRACTION, as in train=0.9,validation=0.1"
# Names of the splits, by the number of boundaries in the option `split_at`.
SPLITS_BY_BOUNDARIES = {
    1: ("train", "test"),
    2: ("train", "validation", "test"),
}


def parse_splits(value: str | Mapping[str, float], name: str) -> tuple[tuple[str, float], ...]:
    """Returns the option `splits` as (name, fraction) of each split.

    >>> parse_splits("train=0.9, validation=0.1", "splits")
    (('train', 0.9), ('validation', 0.1))

    Args:
        value: Text as above, a mapping, or an iterable of pairs.
        name: Name of the option.

    Raises:
        UsageError: The value has another form.
    """
    items = (
        value.split(",")
        if isinstance(value, str)
        else value.items()
        if isinstance(value, Mapping)
        else value
    )
    if not isinstance(items, Iterable | None):
        raise UsageError(
            "{splits}: write {splits_syntax}",
            splits=option("splits", value),
            splits_syntax=_SPLITS_SYNTAX,
        )
    return tuple(_parse_split(item, value) for item in items or ())


def _parse_split(item: Any, value: Any) -> tuple[str, float]:
    parts = [part.strip() for part in item.partition("=")[::2]] if isinstance(item, str) else item
    try:
        name, fraction = parts
        split = name, float(fraction)
    except (TypeError, ValueError):
        split = None, 0.0
    if not isinstance(split[0], str) or not split[0]:
        text = repr(item.strip() if isinstance(item, str) else item)
        raise UsageError(
            "{splits}: {text} is not {splits_syntax}",
            splits=option("splits", value),
            text=f"{text:.99}",
            splits_syntax=_SPLITS_SYNTAX,
        )
    return split


def parse_split_at(value: str | Mapping[str, Any], name: str) -> tuple[str, tuple[str, ...]]:
    """Returns the option `split_at` as (column, boundaries).

    >>> parse_split_at("date=2024-06-01, 2024-09-01", "split_at")
    ('date', ('2024-06-01', '2024-09-01'))
    >>> parse_split_at({"year": 2020}, "split_at")
    ('year', ('2020',))

    Args:
        value: Text or a mapping as above, or a pair.
        name: Name of the option.

    Raises:
        UsageError: The value has another form, or there are no or more than two boundaries.
    """
    items = (
        [value.partition("=")[::2]]
        if isinstance(value, str)
        else [value]
        if isinstance(value, tuple)
        else ()
    )
    items = list(value.items()) if isinstance(value, Mapping) else items
    column, texts = items[0] if len(items) == 1 else ("", "")
    values = (
        texts.split(",")
        if isinstance(texts, str)
        else texts
        if isinstance(texts, tuple | list)
        else (texts,)
    )
    boundaries = tuple(str(boundary).strip() for boundary in values)
    if not column or len(boundaries) not in SPLITS_BY_BOUNDARIES or not all(boundaries):
        raise UsageError(
            "{split_at}: write COLUMN=VALUE or COLUMN=VALUE,VALUE, as in date=2024-06-01",
            split_at=option("split_at", value),
        )
    return column.strip(), boundaries


class BuildOrder(Options, heading="order and splits", decides=True):
    """Options for the order of records and their splits.

    Attributes:
        key: Column that determines the key. If None, the key depends on file and position.
        splits: (name, fraction) of each split. The fractions sum to 1. If None, the folders of the
            inputs determine the splits. Without such folders, all records are in `train`.
        split_column: Column that contains the name of the split.
        split_at: (column, boundaries). A record belongs to the split after the last boundary that
            its value in the column reaches.
        split_by: Column with the split groups: records with equal values stay in one split. None
            means `key`.
        stratify: Column with the classes. Each class is divided by the fractions. If None, all
            records are divided together.
        key_bits: Number of leading bits of a key that are used. The other bits are 0. Tests lower
            the number to get equal keys.

    Raises:
        UsageError: The options are invalid, or contradict each other.
    """

    seed: int = declare(
        "seed of the shuffle; the result also depends on the order of the INPUTs",
        default=0,
        parse=parse_whole,
        common=True,
        excludes=_WITHOUT_SHUFFLE,
    )
    shuffle: bool = declare("keep the order of the input", default=True, common=True)
    key: str | None = declare(
        "order records by a hash of this column, so that a record keeps its place and split when others are added",
        default=None,
        metavar="COLUMN",
        excludes=_WITHOUT_SHUFFLE,
    )
    splits: tuple[tuple[str, float], ...] | None = declare(
        "divide the records at random, as in train=0.9,validation=0.1",
        default=None,
        parse=parse_splits,
        default_text="from folders; otherwise all records are train",
        metavar="NAME=P,...",
        common=True,
    )
    split_from: Literal["auto", "folders", "names", "none"] = declare(
        "what determines the split if --splits is not given", default="auto"
    )
    split_column: str | None = declare(
        "column that holds the split of each record (train, val, dev, test, ...); it is not stored as a feature",
        default=None,
        metavar="COLUMN",
        excludes=(("splits", None),),
    )
    split_at: tuple[str, tuple[str, ...]] | None = declare(
        "divide by a number, date or text: values below the first V are train, from the last V on test, and between two V validation",
        default=None,
        parse=parse_split_at,
        default_text="",
        metavar="COLUMN=V[,V]",
        excludes=(("splits", None), ("split_column", None)),
    )
    split_by: str | None = declare(
        "keep records with equal values of this column in one split",
        default=None,
        metavar="COLUMN",
        common=True,
        needs=_WITH_SPLITS,
    )
    stratify: str | None = declare(
        "keep the share of each class of this column equal in all splits (exact to one record); inputs are read twice",
        default=None,
        metavar="COLUMN",
        common=True,
        needs=_WITH_SPLITS,
    )
    split_seed: int = declare(
        "seed of the division into splits", default=0, parse=parse_whole, needs=(("splits", None),)
    )
    key_bits: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, fraction in self.fractions:
            check_split_name(name)
            if not 0 < fraction <= 1:
                raise UsageError(
                    f"split {name}={fraction}: a fraction must be above 0 and at most 1"
                )
        names = [name for name, _ in self.fractions]
        if len(set(names)) < len(names):
            raise UsageError(f"split named twice in {', '.join(names)}")
        if self.fractions and abs(sum(fraction for _, fraction in self.fractions) - 1) > 1e-9:
            total = sum(fraction for _, fraction in self.fractions)
            if total > 1:
                raise UsageError(
                    "{splits}: the fractions sum to {total}, and must sum to 1",
                    splits=option("splits"),
                    total=f"{total:g}",
                )
            raise UsageError(
                "{splits}: the fractions sum to {total}, not 1, so some records "
                "would belong to no split; add a split for the rest, as in "
                "rest={rest}",
                splits=option("splits"),
                total=f"{total:g}",
                rest=f"{1 - total:g}",
            )
        for name, seed in (("seed", self.seed), ("split_seed", self.split_seed)):
            if not -(2**63) <= seed < 2**63:
                raise UsageError(
                    "{seed}: must be from -2**63 to 2**63 - 1", seed=option(name, seed)
                )

    @property
    def fractions(self) -> tuple[tuple[str, float], ...]:
        """(name, fraction) of each split. Empty if the options name no splits."""
        return self.splits or ()

    @property
    def group_column(self) -> str | None:
        """The column with the split groups, or None if there are no groups."""
        return self.split_by or self.key

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that determine keys or splits, without duplicates."""
        columns = (
            self.key,
            self.split_by,
            self.stratify,
            self.split_column,
            self.split_at and self.split_at[0],
        )
        return tuple(dict.fromkeys(column for column in columns if column is not None))
