"""Functions that tests run in processes of their own, which import them by name."""

import hashlib

import numpy as np
import pyarrow as pa

from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.frames import scan_frames
from recordmill.schemas.feature import Feature, Schema

SCHEMA = Schema((Feature("a", "int64"), Feature("b", "float32", (None,)), Feature("c", "string")))
ONE = Schema((Feature("x", "int64", required=True),))


def digest(seed: int) -> str:
    """Of a batch that the seed gives, encoded and scanned."""
    random = np.random.default_rng(seed)
    splits = np.arange(0, 5001, 5)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(random.integers(-(2**62), 2**62, 1000)),
            pa.LargeListArray.from_arrays(splits, pa.array(random.random(5000, dtype=np.float32))),
            pa.array([f"text {i}" * (i % 9) for i in range(1000)], pa.large_string()),
        ],
        names=["a", "b", "c"],
    )
    frames = encode(batch, SCHEMA)
    assert scan_frames(frames.data, source="x", is_final=True)[1] == len(frames.data)
    return hashlib.sha256(frames.data).hexdigest()


def start(out: str) -> None:
    """Starts a run that writes ONE, and ends without a commit."""
    from recordmill.transforms import write_shards

    write_shards.start_run(write_shards.WriteShards(out, ONE))
