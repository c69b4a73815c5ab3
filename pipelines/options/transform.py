"""The options of `transform`: those of a build, whose transform is that of another data set."""

from __future__ import annotations

from recordmill.pipelines.options.build import BUILD, TRANSFORM
from recordmill.pipelines.options.declare import Option, Options

_FIT = ("transform", "transform_from", "transform_cache", "fit_on", "keep_raw")

APPLY: Options = (
    Option(
        "transform_from",
        "the data set whose transform is applied",
        metavar="OUT",
        flag="--with",
        annotation="str | os.PathLike[str]",
        group=TRANSFORM,
        common=True,
        decides=True,
    ),
    *(option for option in BUILD if option.name not in _FIT),
)
