"""Read 1,000,000 records of 12 features back to Parquet and to NumPy files, beside what people use today.

    python benchmarks/read.py [--rounds 3] [--folder FOLDER]

The data set is what `benchmarks/build.py csv` builds; it is made first if it is not there.
"""

from __future__ import annotations

import argparse
import os
import tempfile

from harness import compare, machine
from make_csv import write_csv

TUTORIAL_ROWS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks"))
    args = parser.parse_args()
    source = os.path.join(args.folder, f"shards-{args.rows}")
    if not os.path.exists(source):
        import recordmill

        csv_path = os.path.join(args.folder, f"{args.rows}.csv")
        os.makedirs(args.folder, exist_ok=True)
        if not os.path.exists(csv_path):
            write_csv(csv_path, args.rows)
        recordmill.build(csv_path, source, kind="csv", num_shards=16)
    print(machine())
    for to in ("parquet", "npy"):
        print(f"\n{args.rows:,} records to {to}; the tutorial loop reads {TUTORIAL_ROWS:,} of them only, so multiply its time by {args.rows / TUTORIAL_ROWS:g}")
        jobs = {"recordmill": ("read_jobs:recordmill", source, os.path.join(args.folder, "table"), to)}
        jobs["tf.data, parse_example in batches"] = ("read_jobs:tf_data", source, os.path.join(args.folder, "table-tf"), to)
        if to == "parquet":
            jobs["tfx-bsl in Beam"] = ("read_jobs:tfx_bsl_beam", source, os.path.join(args.folder, "table-bsl"), to)
            jobs["tutorial loop (20,000 records)"] = ("read_jobs:tutorial", source, os.path.join(args.folder, "table-loop"), to)
        compare(jobs, args.rounds, slow=("tutorial loop (20,000 records)", "tfx-bsl in Beam"))


if __name__ == "__main__":
    main()
