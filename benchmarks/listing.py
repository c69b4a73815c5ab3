"""Measures a driver with very many input files: its memory and its plan.

    python benchmarks/listing.py [FILES]            lists empty files, by default 1,000,000
    python benchmarks/listing.py [FILES] --names    lists and plans images in classes
    python benchmarks/listing.py [FILES] --csv      plans small CSV files, and reads each

Files are on a disk. With `--names` they are the names of an S3 server in another process, which has
no data.

The memory is the most that the process used at once, above its memory before (VmHWM of Linux).
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Process
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.images.source import plan_images
from recordmill.storage.file_table import FileTable
from recordmill.storage.listing import Listing, list_inputs

IN_FOLDER, CLASSES, PAGE, SAMPLE = 1_000, 100, 1_000, 10_000

Value = TypeVar("Value")


def main(count: int, way: str) -> None:
    if way:
        (of_names if way == "--names" else of_csv)(count)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), count)
        listing = measured("listed", count, lambda: list_inputs([folder], data_extensions={"csv"}))
        show_size(listing)


def of_csv(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), count, b"a,b\n1,x\n")
        files = list_inputs([folder]).files
        # A first plan loads modules and fills caches, which must not count.
        plan_csv(files[:SAMPLE], CsvOptions(), PlanOptions())
        measured("planned", count, lambda: plan_csv(files, CsvOptions(), PlanOptions()))


def of_names(count: int) -> None:
    server = Process(target=serve, args=(count, port := free_port()), daemon=True)
    server.start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    # A first request loads modules, which must not count.
    warm = list_inputs(["s3://bucket/in/class-000"])
    plan_images(warm, None, PlanOptions())
    listing = measured("listed", count, lambda: list_inputs(["s3://bucket/in"]))
    show_size(listing)
    plan: Any = measured("planned", count, lambda: plan_images(listing, None, PlanOptions()))
    print(
        f"{len(plan.files):,} files of {len(plan.schema['label'].classes)} classes in {len(plan.units):,} units"
    )
    server.terminate()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def serve(count: int, port: int) -> None:
    """Answers listings of an S3 bucket until the process ends.

    The keys are like `in/class-034/image-000012345.jpg`, in ascending order. A response has PAGE
    keys.
    """

    class Names(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def do_HEAD(self) -> None:
            self.answer(404, b"")

        def do_GET(self) -> None:
            asked = dict(parse_qsl(urlsplit(self.path).query))
            if "prefix" not in asked:
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            first = int(asked.get("continuation-token", 0))
            last = min(first + PAGE, count if asked["prefix"] == "in/" else IN_FOLDER)
            is_last = last == count or asked["prefix"] != "in/"
            more = "" if is_last else f"<NextContinuationToken>{last}</NextContinuationToken>"
            head = f"<ListBucketResult><Name>bucket</Name><IsTruncated>{str(not is_last).lower()}</IsTruncated>{more}"
            data = (
                head
                + "".join(entry(at, count) for at in range(first, last))
                + "</ListBucketResult>"
            ).encode()
            self.answer(200, data)

        def answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing."""

    ThreadingHTTPServer(("127.0.0.1", port), Names).serve_forever()


def entry(at: int, count: int) -> str:
    name = f"in/class-{at * CLASSES // count:03d}/image-{at:09d}.jpg"
    about = f'<ETag>"{at:032x}"</ETag><Size>{100_000 + at % 1_000}</Size>'
    return f"<Contents><Key>{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>{about}</Contents>"


def show_size(listing: Listing) -> None:
    some = FileTable.from_files(listing.files[:SAMPLE])
    size = len(pickle.dumps(some))
    print(f"as workers read it: {size / len(some):.0f} bytes a file")


def make_files(folder: Path, count: int, data: bytes = b"") -> None:
    """Creates `count` CSV files with the same content, IN_FOLDER of them in each folder."""
    for first in range(0, count, IN_FOLDER):
        inner = folder / f"{first // IN_FOLDER:06d}"
        inner.mkdir()
        for number in range(first, min(first + IN_FOLDER, count)):
            (inner / f"part-{number:09d}.csv").write_bytes(data)


def measured(what: str, count: int, make: Callable[[], Value]) -> Value:
    gc.collect()
    # This resets VmHWM, the largest resident memory.
    Path("/proc/self/clear_refs").write_text("5")
    before, started = held("VmRSS"), time.monotonic()
    value = make()
    seconds = time.monotonic() - started
    most = held("VmHWM") - before
    gc.collect()
    left = held("VmRSS") - before
    print(
        f"{what}: {seconds:.1f} s, at most {most / 2**20:.0f} MiB at once, {left / 2**20:.0f} MiB left "
        f"({left / count:.0f} bytes a file)",
        flush=True,
    )
    return value


def held(field: str) -> int:
    """Returns a figure of the system about the memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    numbers, ways = (
        [word for word in sys.argv[1:] if word.startswith("--") == way] for way in (False, True)
    )
    main(int(numbers[0]) if numbers else 1_000_000, "".join(ways))
