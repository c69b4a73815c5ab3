"""The memory of the reader is bounded for any number and size of records."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recordmill.records.example.encode import encode
from recordmill.schemas import tfmd
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

MIB = 1 << 20
SCHEMA = Schema((Feature("id", "int64", (), True), Feature("data", "bytes")))
READ = """
import itertools, sys
import pyarrow as pa
import recordmill

def own():
    pa.default_memory_pool().release_unused()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) << 10

def read(path, way, **options):
    ds = recordmill.open(path, columns=["id"], schema=sys.argv[3], threads=2)
    if way == "mixture":
        small = recordmill.open(sys.argv[1], columns=["id"], schema=sys.argv[3], threads=2)
        ds = recordmill.mixture([(small, 1), (ds, 5)], stop="all")
        options |= {"epochs": 2}
    if way == "pad":
        options |= {"pad_remainder": True, "epochs": 2}
    most = rows = 0
    for batch in itertools.islice(ds.batches(100, memory_bytes="24MiB", **options), 3000):
        rows += len(batch["id"])
        most = max(most, own())
    return most

mode, way = sys.argv[4:]
window = {"window_bytes": "2MiB"} if mode == "window" else {}
mode = False if mode == "False" else mode
read(sys.argv[1], "", shuffle=mode, **window)  # loads kernels and allocates pools
pa.default_memory_pool().release_unused()
before = own()
print(read(sys.argv[2], way, shuffle=mode, **window) - before)
"""


def frames(records: int, data_bytes: int, first_id: int = 0) -> bytes:
    block = np.random.default_rng(7).bytes(1 << 10)  # deflate compresses its copies
    data = [None if not data_bytes else block * (data_bytes >> 10)] * records
    arrow = to_arrow(SCHEMA)
    columns = [
        pa.array(range(first_id, first_id + records)),
        pa.array(data, arrow.field("data").type),
    ]
    return encode(pa.RecordBatch.from_arrays(columns, schema=arrow), SCHEMA).data.tobytes()


def measure_growth(small: Path, large: Path, mode: object, variant: str) -> int:
    """Returns by how many bytes the memory grows while the large file is read.

    The process reads the small file first, so that kernels and pools are not counted.
    """
    schema = small.parent / "schema.pbtxt"
    schema.write_text(tfmd.to_pbtxt(SCHEMA))
    command = [sys.executable, "-c", READ, str(small), str(large), str(schema), str(mode), variant]
    # All threads share one arena of malloc. Other allocators keep up to 32 MiB of freed memory
    # here, and the amount differs by machine.
    allocators = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    process = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **allocators}
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return int(process.stdout)


@pytest.mark.memory
def test_offsets_of_records_take_bounded_memory(tmp_path: Path) -> None:
    small, large = tmp_path / "small.tfrecord", tmp_path / "large.tfrecord"
    small.write_bytes(frames(2000, 0))
    # 5 million records. If each one took 16 bytes, they would take 80 MB.
    large.write_bytes(frames(100_000, 0) * 50)
    assert measure_growth(small, large, "global", "") < 56 * MIB


@pytest.mark.memory
@pytest.mark.parametrize(
    ("mode", "variant"),
    [(False, "pad"), ("window", "pad"), (False, "mixture"), ("window", "mixture")],
)
def test_compressed_file_is_never_held_completely(
    tmp_path: Path, mode: object, variant: str
) -> None:
    small, large = tmp_path / "small.tfrecord.gz", tmp_path / "large.tfrecord.gz"
    small.write_bytes(gzip.compress(frames(250, 4 << 10), 1))
    member = gzip.compress(frames(157, 64 << 10), 1)
    large.write_bytes(member * 12)  # 118 MiB
    assert measure_growth(small, large, mode, variant) < 72 * MIB


LATER_LISTS = """
import io, sys
import numpy as np
import pyarrow as pa
from PIL import Image
import recordmill

def own():
    pa.default_memory_pool().release_unused()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) << 10

target = io.BytesIO()
Image.new("RGB", (96, 96)).save(target, "PNG")
lengths = [1] * 100 + [400] * 100  # 400 images are 11 MiB of pixels
recordmill.build([{"frames": [target.getvalue()] * n} for n in lengths], sys.argv[1])
ds = recordmill.open(sys.argv[1], threads=4)
most = before = own()
batches = ds.batches(4, shuffle=False, epochs=1, decode_images={"frames": True}, memory_bytes="96MiB")
for batch in batches:
    most = max(most, own())
print(most - before)
"""


@pytest.mark.memory
def test_images_of_lists_that_become_longer_take_bounded_memory(tmp_path: Path) -> None:
    """The reader knows only the first records when it plans its reads.

    The later lists have more images.
    """
    command = [sys.executable, "-c", LATER_LISTS, str(tmp_path / "out")]
    allocators = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    process = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **allocators}
    )
    assert process.returncode == 0, process.stderr[-3000:]
    # A batch has 42 MiB. The user holds one of them, too.
    assert int(process.stdout.split()[-1]) < (96 + 2 * 42) * MIB


MAPPED_PAGES = """
import sys
import numpy as np
import recordmill

def mapped_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssFile")) << 10

rows = {"id": np.arange(300_000), "data": np.ones((300_000, 100), np.float32)}
recordmill.build(rows, sys.argv[1], num_shards=int(sys.argv[2]))  # 130 MB
ds = recordmill.open(sys.argv[1], threads=2)
shuffled = lambda: ds.batches(100, shuffle="global", epochs=1, memory_bytes="24MiB")
next(shuffled())  # loads libraries
before, most, ids = mapped_bytes(), 0, []
for batch in shuffled():
    ids.append(batch["id"])
    most = max(most, mapped_bytes())
assert (np.sort(np.concatenate(ids)) == rows["id"]).all()
print(most - before)
"""


@pytest.mark.memory
@pytest.mark.parametrize("shards", [3, 40])
def test_shuffled_records_of_a_large_data_set_do_not_fill_the_memory_with_pages(
    tmp_path: Path, shards: int
) -> None:
    command = [sys.executable, "-c", MAPPED_PAGES, str(tmp_path / "out"), str(shards)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    assert int(process.stdout.split()[-1]) < 24 * MIB  # includes 7 MB of pages of the indexes
