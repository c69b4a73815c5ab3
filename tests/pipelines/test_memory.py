"""A command stays within `--memory` for small inputs that expand to hundreds of megabytes.

Each command runs in its own process.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.files import write_tfrecord
from kit.wire_writer import field

import recordmill

pytestmark = pytest.mark.memory
MEMORY = 128 << 20  # the minimum for a build
SLACK = 5 / 4


# Address space of each process, 6 GiB. Protects the machine if a test takes too much by mistake.
# Address space that is only reserved counts, too.
ADDRESS_BYTES = 6 << 30
_SCRIPT = """
import ctypes, resource, sys
import pyarrow as pa
from recordmill.__main__ import main

resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)

def held(name):
    pa.default_memory_pool().release_unused()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(name)).split()[1]) << 10

words = sys.argv[2:]
at = words.index("::")
assert main(words[:at]) == 0, "what the small command loads would be measured"
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")
before = held("VmRSS")
code = main(words[at + 1:])
print("took", code, held("VmHWM") - before)
"""


class Usage(NamedTuple):
    """Result of a command.

    Attributes:
        bytes: Peak memory beyond the memory in use before the command.
        messages: The text on stderr.
    """

    code: int
    bytes: int
    messages: str


def peak_memory(small: Sequence[object], command: Sequence[object]) -> Usage:
    """Runs a command in its own process, and measures its memory.

    Args:
        small: A command that runs first, to load all modules.
        command: The command to measure.
    """
    words = [
        sys.executable,
        "-c",
        _SCRIPT,
        str(ADDRESS_BYTES),
        *map(str, small),
        "::",
        *map(str, command),
    ]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    _, _, report = process.stdout.rpartition("took ")
    assert report, process.stderr
    code, peak_bytes = map(int, report.split())
    return Usage(code, peak_bytes, process.stderr)


def example(numbers: int, texts: int) -> bytes:
    """Returns an Example with lists of ones and of empty texts.

    Args:
        numbers: The number of ones, one byte each.
        texts: The number of empty texts, two bytes each.
    """
    lists = {b"numbers": field(3, field(1, b"\1" * numbers)), b"texts": field(1, b"\x0a\0" * texts)}
    return field(
        1, b"".join(field(1, field(1, name) + field(2, values)) for name, values in lists.items())
    )


def build(tmp_path: Path, name: str, *options: object) -> tuple[int, int]:
    """Runs a build with the minimum of memory, after a small build.

    Returns:
        (exit code, memory in bytes).
    """
    small = tmp_path / f"small.{name.rpartition('.')[2]}"
    words = ["--quiet", "--memory", MEMORY, "--max-rejects", "100%", "--threads", 2]
    usage = peak_memory(
        ["build", small, "--out", tmp_path / "small", "--overwrite", *words],
        ["build", tmp_path / name, "--out", tmp_path / "out", *words, *options],
    )
    assert "Traceback" not in usage.messages
    return usage.code, usage.bytes


@pytest.mark.sweep
def test_memory_limit_holds_for_a_row_group_larger_than_the_memory(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).random((9, 2_000_000))
    pq.write_table(
        pa.table({f"x{number}": row for number, row in enumerate(numbers)}), tmp_path / "a.parquet"
    )
    pq.write_table(
        pa.table({f"x{number}": [0.5] for number in range(9)}), tmp_path / "small.parquet"
    )
    assert (tmp_path / "a.parquet").stat().st_size > MEMORY
    code, peak_bytes = build(tmp_path, "a.parquet", "--no-stats")
    assert (code, peak_bytes < SLACK * MEMORY) == (0, True), peak_bytes


def test_memory_limit_holds_for_json_lines_of_many_values(tmp_path: Path) -> None:
    rows = [json.dumps({"list": [1] * 2_000_000}), json.dumps({"text": "x" * (9 << 20)})]
    (tmp_path / "a.jsonl").write_text("\n".join(rows * 3))
    (tmp_path / "small.jsonl").write_text('{"list": [1], "text": "a"}\n' * 5)
    code, peak_bytes = build(tmp_path, "a.jsonl", "--max-line-bytes", "200MiB")
    assert (code, peak_bytes < SLACK * MEMORY) == (0, True), peak_bytes


def test_memory_limit_holds_for_images_of_many_pixels(tmp_path: Path) -> None:
    from PIL import Image

    for folder, size in (("in.png", (6000, 6000)), ("small.png", (9, 9))):
        (tmp_path / folder).mkdir()
        for number in range(3):
            Image.new("L", size if number else (9, 9)).save(tmp_path / folder / f"{number}.png")
    code, peak_bytes = build(tmp_path, "in.png", "--check", "decode")
    assert (code, peak_bytes < SLACK * MEMORY) == (0, True), peak_bytes


def test_memory_limit_holds_for_photographs_that_statistics_decode(tmp_path: Path) -> None:
    from PIL import Image

    for folder, sizes in (
        ("in.jpg", [(4000, 3100), (5700, 5700), (4000, 3000)]),
        ("small.jpg", [(9, 9)]),
    ):
        (tmp_path / folder).mkdir()
        for number, size in enumerate(sizes):
            Image.new("RGB", size, (number, 7, 9)).save(
                tmp_path / folder / f"{number}.jpg", quality=30
            )
    code, peak_bytes = build(tmp_path, "in.jpg")
    assert (code, peak_bytes < MEMORY // 2) == (0, True), peak_bytes


READ_MEMORY = 256 << 20


def read(tmp_path: Path, name: str, small: str, *options: object) -> tuple[int, int]:
    words = ["--quiet", "--memory", READ_MEMORY, "--threads", 1, *options]
    usage = peak_memory(
        ["read", tmp_path / small, "--out", tmp_path / "table of small", *words],
        ["read", tmp_path / name, "--out", tmp_path / "table", *words],
    )
    assert "Traceback" not in usage.messages
    return usage.code, usage.bytes


@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_memory_limit_holds_for_records_that_expand_many_times(tmp_path: Path, kind: str) -> None:
    large = example(12_000_000, 1) if kind == "numbers" else example(1, 8_000_000)
    write_tfrecord(tmp_path / "a.tfrecord", example(3, 2), large, example(2, 3))
    write_tfrecord(tmp_path / "small.tfrecord", *[example(3, 2)] * 5)
    code, peak_bytes = read(tmp_path, "a.tfrecord", "small.tfrecord")
    assert (code, peak_bytes < SLACK * READ_MEMORY) == (1, True), peak_bytes
    code, peak_bytes = read(
        tmp_path, "a.tfrecord", "small.tfrecord", "--max-rejects", 1, "--overwrite"
    )
    assert (code, peak_bytes < SLACK * READ_MEMORY) == (0, True), peak_bytes
    assert json.loads((tmp_path / "table" / "_read.json").read_text())["reject_reasons"] == {
        "memory": 1
    }


def test_read_refuses_a_huge_record_by_its_header(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "large.tfrecord", example(400 << 20, 0))
    write_tfrecord(tmp_path / "small.tfrecord", example(3, 2))
    code, peak_bytes = read(tmp_path, "large.tfrecord", "small.tfrecord")
    assert code == 1
    assert peak_bytes < MEMORY / 2


def test_statistics_leave_out_a_record_beyond_the_memory(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "a.tfrecord", example(3, 2), example(12_000_000, 1), example(2, 3))
    write_tfrecord(tmp_path / "small.tfrecord", *[example(3, 2)] * 5)
    code, peak_bytes = build(tmp_path, "a.tfrecord")
    assert (code, peak_bytes < SLACK * MEMORY) == (0, True), peak_bytes
    ds = recordmill.open(tmp_path / "out")
    assert len(ds) == 3
    manifest = (tmp_path / "out" / "manifest.json").read_text()
    assert (
        "records left out of the statistics, because parsing them takes too much memory: 1"
        in manifest
    )
    assert (
        ds.statistics["train"]["numbers"].lengths[2],
        ds.statistics["train"]["numbers"].present,
    ) == (3, 2)


def test_transform_rejects_a_record_beyond_the_memory(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow_transform", reason="fits a transform")
    write_tfrecord(tmp_path / "a.tfrecord", example(3, 2), example(12_000_000, 1), example(2, 3))
    (tmp_path / "transform.yaml").write_text("numbers: {clip: [0, 5]}\n")
    options = {
        "memory": MEMORY,
        "transform": tmp_path / "transform.yaml",
        "max_rejects": 1,
        "threads": 1,
    }
    result = recordmill.build(tmp_path / "a.tfrecord", tmp_path / "out", **options)
    assert (sum(result.records.values()), result.manifest.rejects["reasons"]) == (2, {"memory": 1})


@pytest.mark.sweep
@pytest.mark.parametrize("command", ["inspect", "head", "stats"])
@pytest.mark.parametrize(("numbers", "texts"), [(20_000_000, 1), (1, 12_000_000)])
def test_large_record_is_held_in_memory_once(
    tmp_path: Path, command: str, numbers: int, texts: int
) -> None:
    write_tfrecord(tmp_path / "a.tfrecord", example(3, 2), example(numbers, texts), example(2, 3))
    write_tfrecord(tmp_path / "small.tfrecord", *[example(3, 2)] * 5)
    usage = peak_memory([command, tmp_path / "small.tfrecord"], [command, tmp_path / "a.tfrecord"])
    assert (usage.code, usage.bytes < READ_MEMORY) == (0, True), usage.bytes


def test_memory_limit_holds_for_a_record_that_repeats_one_name(tmp_path: Path) -> None:
    entry = field(1, field(1, b"a") + field(2, field(3, field(1, b"\1"))))
    write_tfrecord(
        tmp_path / "small.tfrecord", example(3, 2), field(1, entry * 300_000), example(3, 2)
    )
    for count in (2_500_000, 3_700_000):
        write_tfrecord(
            tmp_path / "a.tfrecord", example(3, 2), field(1, entry * count), example(2, 3)
        )
        code, peak_bytes = build(tmp_path, "a.tfrecord", "--overwrite")
        assert (code, peak_bytes < SLACK * MEMORY) == (0, True), peak_bytes
        assert len(recordmill.open(tmp_path / "out")) == 2


def test_compaction_stays_within_its_memory(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    outs = {}
    for name, rows in (("small", 10), ("large", 60_000)):
        outs[name] = tmp_path / name
        for part in range(3):
            # The feature is named after the file.
            path = tmp_path / f"{name}-{part}" / "x.npy"
            path.parent.mkdir()
            np.save(path, random.random((rows, 512), np.float32))
            recordmill.build(str(path), outs[name], append=part > 0)
            path.unlink()
    usage = peak_memory(
        ["compact", outs["small"], "--threads", 2],
        ["compact", outs["large"], "--threads", 2, "--memory", MEMORY],
    )
    assert usage.code == 0, usage.messages
    assert usage.bytes < MEMORY * SLACK
    assert len(recordmill.open(outs["large"])) == 180_000
