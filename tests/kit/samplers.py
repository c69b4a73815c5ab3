"""Samplers for data sets of any size."""

from recordmill.options.parsers import parse_shuffle
from recordmill.reader.sampling.sampler import (
    EpochLayout,
    FileExtent,
    Sampler,
)


def make_sampler(
    mode: object, files: list[FileExtent], seed: int = 0, window: int = 900, piece: int = 300
) -> Sampler:
    layout = EpochLayout.from_files(files, piece)
    return Sampler(
        parse_shuffle(mode, "shuffle"),
        sum(file.records for file in files),
        layout,
        seed,
        "data",
        window,
    )  # type: ignore[arg-type]
