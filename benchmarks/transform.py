"""Compares a build with a transform to plain tf.Transform.

    python benchmarks/transform.py [--rounds 3] [--rows 1000000] [--folder FOLDER]

The input is a CSV file of 1,000,000 rows and 12 columns. The transform has 4 z-scores, 2 bucketizes
and 2 vocabularies, which are fitted and applied. Plain tf.Transform uses CsvTFXIO,
AnalyzeAndTransformDataset and WriteToTFRecord, and runs once. The start-up includes the imports of
TensorFlow, Beam and tf.Transform, which both need.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

SCORED, BUCKETED, WORDED = ("x0", "x1", "x2", "x3"), ("count", "ratio"), ("user", "comment")
BUCKETS, WORDS, SHARDS = 10, 1000, 16


def recordmill(source: str, out: str) -> Callable[[], object]:
    """Runs a build with a declared transform."""
    import apache_beam  # noqa: F401
    import tensorflow_transform.beam  # noqa: F401

    from recordmill.pipelines.build import build

    declared: dict[str, Any] = dict.fromkeys(SCORED, "zscore")
    declared |= {name: {"bucketize": BUCKETS} for name in BUCKETED}
    declared |= {name: {"vocabulary": {"top_k": WORDS}} for name in WORDED}
    build({"x": [1, 2]}, out + "-warm", overwrite=True)
    shutil.rmtree(out, ignore_errors=True)
    return lambda: build(
        source, out, kind="csv", transform=declared, num_shards=SHARDS, memory="256MiB"
    )


def plain(source: str, out: str) -> Callable[[], object]:
    """Runs tf.Transform as in its guide, on the same local runner."""
    import apache_beam as beam
    import tensorflow as tf
    import tensorflow_transform as tft
    import tensorflow_transform.beam as tft_beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from tensorflow_transform.tf_metadata import schema_utils
    from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder
    from tfx_bsl.public import tfxio

    kinds = {
        "id": tf.int64,
        "count": tf.int64,
        "code": tf.int64,
        **dict.fromkeys((*SCORED, "ratio"), tf.float32),
    }
    kinds |= dict.fromkeys(("user", "comment", "time", "label"), tf.string)
    with open(source) as file:
        names = file.readline().replace('"', "").strip().split(",")
    schema = schema_utils.schema_from_feature_spec(
        {name: tf.io.FixedLenFeature([], kinds[name]) for name in names}
    )
    shutil.rmtree(out, ignore_errors=True)

    def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
        made = dict(inputs)
        made |= {name: tft.scale_to_z_score(inputs[name]) for name in SCORED}
        made |= {name: tft.bucketize(inputs[name], BUCKETS) for name in BUCKETED}
        made |= {
            name: tft.compute_and_apply_vocabulary(inputs[name], top_k=WORDS) for name in WORDED
        }
        return made

    def work() -> None:
        lines = tfxio.BeamRecordCsvTFXIO(
            physical_format="text",
            column_names=names,
            schema=schema,
            telemetry_descriptors=["benchmark"],
        )
        with (
            tft_beam.Context(temp_dir=tempfile.mkdtemp()),
            beam.Pipeline(runner=FnApiRunner()) as pipeline,
        ):
            batches = (
                pipeline | beam.io.ReadFromText(source, skip_header_lines=1) | beam.Map(str.encode)
            )
            batches = batches | lines.BeamSource()
            (made, _), fitted = (
                batches,
                lines.TensorAdapterConfig(),
            ) | tft_beam.AnalyzeAndTransformDataset(preprocessing_fn, output_record_batches=True)
            coder = RecordBatchToExamplesEncoder()
            examples = made | beam.FlatMapTuple(lambda batch, _: coder.encode(batch))
            _ = examples | beam.io.WriteToTFRecord(os.path.join(out, "train"), num_shards=SHARDS)
            _ = fitted | tft_beam.WriteTransformFn(out)

    return work


def main() -> None:
    from harness import compare, machine
    from make_csv import write_csv

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    print(machine())
    source = os.path.join(args.folder, f"{args.rows}.csv")
    if not os.path.exists(source):
        write_csv(source, args.rows)
    jobs = {
        name: (f"transform:{function}", source, os.path.join(args.folder, f"out-{function}"))
        for name, function in (("recordmill", "recordmill"), ("plain tf.Transform", "plain"))
    }
    measured = compare(jobs, args.rounds, slow=("plain tf.Transform",), before=os.sync)
    for name, one in measured.items():
        print(f"{name}: {(one.peak - one.base) / 2**20:.0f} MiB above the imports")


if __name__ == "__main__":
    main()
