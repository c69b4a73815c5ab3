"""Measures the peak memory of a build and of reads in a store.

    .ci/servers && python benchmarks/store_memory.py [--memory 256MiB]

Inputs are four times larger than --memory. Each job runs in a fresh process, which first does the
same with something tiny. This imports everything, loads compiled code and opens a connection. The
memory after that is the base. The peak must not exceed the base by more than --memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness import machine, run
from make_csv import write_csv

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def build_job(source: str, out: str, memory: str) -> Callable[[], object]:
    import recordmill

    recordmill.build(f"{source}-warm.csv", f"{out}-warm", kind="csv", num_shards=1, overwrite=True)
    return lambda: recordmill.build(source, out, kind="csv", memory=memory)


def read_job(source: str, out: str, to: str, memory: str) -> Callable[[], object]:
    import recordmill

    recordmill.read(f"{source}-warm", f"{out}-warm", to=to, overwrite=True)
    return lambda: recordmill.read(source, out, to=to, memory=memory)


def main() -> None:
    from kit.store_server import s3_server

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", default="256MiB")
    memory = parser.parse_args().memory
    limit = int(memory.removesuffix("MiB")) << 20
    print(machine())
    print(f"--memory {memory}, inputs of {4 * limit >> 20} MiB")
    with tempfile.TemporaryDirectory() as given, s3_server(Path(given, "server")) as store:
        write_csv(str(Path(given, "server", "bucket", "in.csv")), 4 * limit // 111)
        root = store.root
        store.put("in.csv-warm.csv", b"warm,up\nx,1.5\n")
        for name, job in {
            "build from there to there": ("build_job", f"{root}/in.csv", f"{root}/out", memory),
            "read to Parquet there": (
                "read_job",
                f"{root}/out",
                f"{root}/parquet",
                "parquet",
                memory,
            ),
            "read to npy there": ("read_job", f"{root}/out", f"{root}/npy", "npy", memory),
        }.items():
            one = run(f"store_memory:{job[0]}", *job[1:])
            above = one.peak - one.base
            print(
                f"{name:26} base {one.base >> 20:5} MiB, peak {above >> 20:5} MiB above it ({above / limit:5.0%} "
                f"of --memory), {one.work:6.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
