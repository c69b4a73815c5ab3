"""Plans of inputs of each kind."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kit import image_samples
from recordmill.sources.arrow.parquet import plan_parquet
from recordmill.sources.common.contract import PlanOptions, Source
from recordmill.sources.common.options import TableOptions
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.images.source import plan_images
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import plan_jsonl
from recordmill.sources.text.options import TextOptions
from recordmill.sources.text.source import plan_text
from recordmill.storage.listing import list_inputs

KINDS = ("csv", "jsonl", "text", "documents")


def plan(kind: str, path: Path, encoding: str = "utf-8") -> Source:
    listing, common = list_inputs([str(path)]), PlanOptions()
    if kind == "csv":
        return plan_csv(listing.files, CsvOptions(encoding=encoding), common)
    if kind == "jsonl":
        return plan_jsonl(listing.files, JsonlOptions(encoding=encoding), common)
    if kind == "parquet":
        return plan_parquet(listing.files, TableOptions(), common)
    if kind == "images":
        return plan_images(listing)
    return plan_text(
        listing, TextOptions(mode=kind.replace("text", "lines"), encoding=encoding), common
    )


def content(kind: str, number: int, folder: Path) -> bytes:
    """Returns the content of an input file.

    Contents with different numbers have the same size. Tests use them to change a file between
    plan and read.
    """
    if kind == "parquet":
        pq.write_table(pa.table({"a": [number]}), folder / "made")
        return (folder / "made").read_bytes()
    texts = {"csv": f"a,b\n{number},2\n", "jsonl": f'{{"a": {number}}}\n', "images": ""}
    return texts.get(kind, f"text {number}\n").encode() or image_samples.encode_image("PNG")
