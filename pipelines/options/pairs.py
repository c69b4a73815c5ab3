"""Values of options as people write them: `train=0.9,validation=0.1`, `x=float64`.
Text in, numbers out, or what was wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from recordmill.base.errors import UsageError


def parse_splits(value: str | Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """(name, fraction) pairs of `train=0.9,validation=0.1`, or of a mapping.

    >>> parse_splits("train=0.9, validation=0.1")
    (('train', 0.9), ('validation', 0.1))
    """
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return tuple((name, float(fraction)) for name, fraction in value.items())
    pairs = []
    for item in value.split(","):
        name, equals, fraction = item.partition("=")
        try:
            pairs.append((name.strip(), float(fraction)))
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise UsageError(f"--splits {value}: {item.strip()!r} is not NAME=FRACTION, as in train=0.9,validation=0.1")
    return tuple(pairs)


def parse_dtypes(items: Iterable[str]) -> dict[str, str]:
    """Feature to dtype of `x=float64` items; the last `=` divides, since names may hold one.

    >>> parse_dtypes(["x=float64", "a=b=int32"])
    {'x': 'float64', 'a=b': 'int32'}
    """
    result = {}
    for item in items:
        name, equals, dtype = item.rpartition("=")
        if not equals or not name or not dtype:
            raise UsageError(f"--dtype {item}: give FEATURE=DTYPE, as in price=float64")
        result[name] = dtype
    return result
