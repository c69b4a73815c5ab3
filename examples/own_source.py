"""A kind of input of your own, here texts of fixed width (`12345678apples              0.99`), as a Source.

python examples/own_source.py PRICES.txt... OUT

A Source knows its schema, its files and its units: the pieces of work, here a file each (large files want several, so
that threads share them). `read` gives a unit's records in chunks, the same ones each time it is called, with the file
and the position of each record; what can't be used is a Reject with its place.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa

import recordmill
from recordmill.base.errors import Reject
from recordmill.schemas.arrow import to_arrow
from recordmill.sources.common.contract import Chunk, Unit
from recordmill.sources.common.layout import read_layout
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.listing import list_inputs

SCHEMA = recordmill.Schema(
    (recordmill.Feature("id", "int64"), recordmill.Feature("name", "string"), recordmill.Feature("price", "float64"))
)


@dataclass(frozen=True)
class FixedWidth:
    files: FileTable
    units: tuple[Unit, ...]
    kind: str = "fixed-width"
    schema: recordmill.Schema = SCHEMA
    digests: Mapping[int, str] = field(default_factory=dict)  # none: the build digests the files itself
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()

    def read(self, unit: Unit) -> Iterator[Chunk]:
        file = self.files[unit.first_file]
        with open(file.path, encoding="utf-8") as lines:
            numbered = enumerate(lines)
            while block := list(islice(numbered, 10_000)):
                yield self._chunk(file, unit.first_file, block)

    def _chunk(self, file: InputFile, ordinal: int, block: Sequence[tuple[int, str]]) -> Chunk:
        rows, positions, rejects = [], [], []
        for number, line in block:
            try:
                rows.append((int(line[:8]), line[8:28].strip(), float(line[28:])))
                positions.append(number)
            except ValueError as error:
                rejects.append(Reject(file.name, f"line {number + 1}", "value", str(error)))
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, to_arrow(self.schema), strict=True)],
            schema=to_arrow(self.schema),
        )
        return Chunk(batch, np.full(len(rows), ordinal, np.uint32), np.array(positions, np.int64), tuple(rejects))


def plan_fixed_width(inputs: Sequence[str]) -> FixedWidth:
    listing = list_inputs(inputs)
    layout = read_layout(listing.files, listing.roots, class_from="none")
    files = listing.files.with_splits(layout.splits)  # train/, test/
    units = (Unit(at, at + 1, size_bytes=file.stat.size_bytes) for at, file in enumerate(files))
    return FixedWidth(files, tuple(units), notes=listing.notes)


if __name__ == "__main__":
    *inputs, out = sys.argv[1:]
    print(recordmill.build(plan_fixed_width(inputs), out, max_rejects="1%", quiet=False))
