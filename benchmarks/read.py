"""Compares reads of TFRecords to Parquet and NumPy with other ways to read them.

    python benchmarks/read.py [--rounds 3] [--folder FOLDER] [table] [foreign] [tensors]

`table` reads 1,000,000 records of 12 features, from the data set that `benchmarks/build.py csv`
builds. `foreign` reads the same shards without their manifest. `tensors` reads 20,000 raw tensors
to NumPy files. Data sets that do not exist are built first.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import tempfile

from harness import compare, machine
from make_csv import write_csv
from read_jobs import TENSOR, make_tensors

from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import to_pbtxt

TUTORIAL_ROWS = 20_000
CASES = ("table", "foreign", "tensors")


def make_shards(folder: str, rows: int) -> None:
    """Builds the same data set as `build.py csv`."""
    import recordmill

    csv_path = os.path.join(folder, f"{rows}.csv")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(csv_path):
        write_csv(csv_path, rows)
    recordmill.build(csv_path, os.path.join(folder, f"shards-{rows}"), kind="csv", num_shards=16)


def table(folder: str, rows: int, rounds: int) -> None:
    source = os.path.join(folder, f"shards-{rows}")
    if not os.path.exists(source):
        make_shards(folder, rows)
    for to in ("parquet", "npy"):
        print(
            f"\n{rows:,} records to {to}; the tutorial loop reads {TUTORIAL_ROWS:,} of them only, so "
            f"multiply its time by {rows / TUTORIAL_ROWS:g}"
        )
        jobs = {
            "recordmill": ("read_jobs:recordmill_read", source, os.path.join(folder, "table"), to)
        }
        jobs["tf.data, parse_example in batches"] = (
            "read_jobs:tf_data",
            source,
            os.path.join(folder, "table-tf"),
            to,
        )
        if to == "parquet":
            jobs["tfx-bsl in Beam"] = (
                "read_jobs:tfx_bsl_beam",
                source,
                os.path.join(folder, "table-bsl"),
                to,
            )
            jobs["tutorial loop (20,000 records)"] = (
                "read_jobs:tutorial",
                source,
                os.path.join(folder, "table-loop"),
                to,
            )
        compare(jobs, rounds, slow=("tutorial loop (20,000 records)", "tfx-bsl in Beam"))


def foreign(folder: str, rows: int, rounds: int) -> None:
    """Reads the table's shards without their manifest, at two sizes.

    The larger input has four copies of each shard.
    """
    known = os.path.join(folder, f"shards-{rows}")
    if not os.path.exists(known):
        make_shards(folder, rows)
    for times in (1, 4):
        source = os.path.join(folder, f"foreign-{rows}-{times}")
        os.makedirs(source, exist_ok=True)
        for number in range(times):
            for shard in sorted(glob.glob(f"{known}/data-*/*.tfrecord")):
                copy = os.path.join(source, f"{number}-{os.path.basename(shard)}")
                if not os.path.exists(copy):
                    shutil.copy(shard, copy)
        for to in ("parquet", "memory"):
            print(f"\n{times * rows:,} foreign records without a schema to {to}")
            out = os.path.join(folder, "foreign-out")
            jobs = {"recordmill": ("read_jobs:foreign", source, out, to)}
            if to == "memory":
                jobs["tf.data, told the features"] = ("read_jobs:tf_data_in_memory", source, known)
            else:
                jobs["tf.data, told the features, pyarrow"] = (
                    "read_jobs:tf_data",
                    source,
                    f"{out}-tf",
                    to,
                    known,
                )
            compare(jobs, rounds)


def tensors(folder: str, records: int, rounds: int) -> None:
    source, schema, out = (
        os.path.join(folder, f"tensors-{records}.tfrecord"),
        os.path.join(folder, "tensors.schema.pbtxt"),
        os.path.join(folder, "arrays"),
    )
    if not os.path.exists(source):
        make_tensors(source, records)
    with open(schema, "w", encoding="utf-8") as file:
        file.write(
            to_pbtxt(
                Schema((Feature("image", "bytes", (), True), Feature("label", "int64", (), True)))
            )
        )
    print(f"\n{records:,} float32 tensors of {TENSOR}, {os.stat(source).st_size >> 20} MiB, to npy")
    jobs = {
        "read, check CRC, write once": ("read_jobs:tensors_limit", source, out),
        "recordmill --decode-raw --schema": ("read_jobs:tensors_recordmill", source, out, schema),
        "recordmill --decode-raw (schema inferred)": ("read_jobs:tensors_recordmill", source, out),
        "tf.data, parse_example in batches": ("read_jobs:tensors_tf_data", source, out),
    }
    compare(jobs, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tensors", type=int, default=20_000)
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    args = parser.parse_args()
    print(machine())
    if "table" in args.cases:
        table(args.folder, args.rows, args.rounds)
    if "foreign" in args.cases:
        foreign(args.folder, args.rows, args.rounds)
    if "tensors" in args.cases:
        tensors(args.folder, args.tensors, args.rounds)


if __name__ == "__main__":
    main()
