"""Plans and rows of CSV files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kit.source_reading import check_chunk, input_files
from recordmill.base.errors import Reject
from recordmill.schemas.arrow import to_arrow
from recordmill.sources.common.contract import Chunk, PlanOptions
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import CsvSource, plan_csv


def plan(
    path: Path | Sequence[Path], options: CsvOptions | None = None, **common: Any
) -> CsvSource:
    paths = [path] if isinstance(path, Path) else path
    return plan_csv(
        input_files(*paths), CsvOptions() if options is None else options, PlanOptions(**common)
    )


def read(source: CsvSource) -> tuple[pa.Table, list[tuple[int, int]], list[Reject]]:
    """Reads all units of a source, and checks each chunk.

    Returns:
        (all records, the (file, position) of each, all rejects)
    """
    chunks: list[Chunk] = []
    for unit in source.units:
        unit_chunks = list(source.read(unit))
        assert sum(chunk.rows + len(chunk.rejects) for chunk in unit_chunks) == unit.rows
        chunks.extend(unit_chunks)
    for chunk in chunks:
        check_chunk(chunk, source)
    table = pa.Table.from_batches([chunk.records for chunk in chunks], to_arrow(source.schema))
    places = [
        place
        for chunk in chunks
        for place in zip(chunk.file_ids.tolist(), chunk.positions.tolist(), strict=True)
    ]
    assert places == sorted(places)
    return table, places, [reject for chunk in chunks for reject in chunk.rejects]
