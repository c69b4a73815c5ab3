"""Compares a build with a parser of the user with a bare loop, and with TensorFlow Datasets.

    python benchmarks/user_parser.py [--parsers lines batches wav] [--files 24] [--rows 20000]
                                     [--rounds 3] [--no-tfds] [--folder FOLDER]

The limit is a pool of processes that calls the same function and throws the records away. A build
also sorts, checks and writes the records. To show how much of its time this takes, the same records
are built from Parquet files, too. There are three parsers:

* `lines` is cheap: it yields a dict for each line of 14 numbers.
* `batches` is cheaper still: pyarrow reads the same files, and it yields RecordBatches.
* `wav` is one as users write it: it reads a WAV file of minutes, and yields the log-mel spectrogram
  (98 x 40) of each second. There is one such record for each 100 lines of the others.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import shutil
import tempfile
import wave
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from harness import compare, machine, run

_RATE, _WINDOW, _HOP, _BANDS = 16_000, 400, 160, 40


def parse_lines(path: str) -> Iterator[dict[str, Any]]:
    """Yields a dict for each line of a file."""
    with open(path) as file:
        for number, line in enumerate(file):
            yield {"number": number, "action": np.array(line.split(), np.float32)}


def parse_batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yields the lines of a file as RecordBatches."""
    names = [str(column) for column in range(14)]
    table = pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(column_names=names, use_threads=False),
        pyarrow.csv.ParseOptions(delimiter=" "),
        pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float32())),
    )
    for batch in table.to_batches():
        numbers = np.stack([batch[name].to_numpy() for name in names], axis=1)
        actions = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), 14)
        yield pa.record_batch({"action": actions})


def parse_wav(path: str) -> Iterator[dict[str, Any]]:
    """Yields the log-mel spectrogram of each second of a WAV file."""
    with wave.open(path) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    filters, window = _mel_filters(), np.hanning(_WINDOW).astype(np.float32)
    for second in range(len(samples) // _RATE):
        clip = samples[second * _RATE : (second + 1) * _RATE].astype(np.float32) / 32768
        frames = np.lib.stride_tricks.sliding_window_view(clip, _WINDOW)[::_HOP] * window
        power = np.abs(np.fft.rfft(frames)) ** 2
        yield {"second": second, "mel": np.log(power @ filters + 1e-6).astype(np.float32)}


def _mel_filters() -> np.ndarray[Any, Any]:
    """Returns the triangular filters, [frequencies, bands]."""
    limit = 2595 * math.log10(1 + _RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, limit, _BANDS + 2) / 2595) - 1)
    frequencies = np.linspace(0, _RATE / 2, _WINDOW // 2 + 1)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


PARSERS = {"lines": parse_lines, "batches": parse_batches, "wav": parse_wav}


def count_records(job: tuple[str, str]) -> int:
    """Returns the number of records of a file.

    Args:
        job: (name of the parser, path).
    """
    name, path = job
    return sum(getattr(item, "num_rows", 1) for item in PARSERS[name](path))


def loop(name: str, folder: str, _: str) -> Callable[[], object]:
    """A pool of processes that parses all files, and keeps nothing."""
    jobs = [(name, str(path)) for path in sorted(Path(folder).iterdir())]

    def work() -> None:
        with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
            sum(pool.imap_unordered(count_records, jobs))

    return work


def build(name: str, folder: str, out: str) -> Callable[[], object]:
    """A build of the files by recordmill."""
    import recordmill

    shutil.rmtree(out, ignore_errors=True)
    return lambda: recordmill.build(folder, out, parser=f"{__file__}:parse_{name}")


def write_parquet(name: str, folder: str, out: str) -> Callable[[], object]:
    """Writes the records of all files to Parquet files, unless these exist."""
    import recordmill

    def work() -> None:
        if not os.path.exists(_parquet_folder(name, folder)):
            build(name, folder, out)()
            recordmill.read(out, _parquet_folder(name, folder), to="parquet", compression="none")

    return work


def _parquet_folder(name: str, folder: str) -> str:
    return f"{folder}-{name}-parquet"


def parquet(name: str, folder: str, out: str) -> Callable[[], object]:
    """A build of Parquet files with the same records."""
    import recordmill

    shutil.rmtree(out, ignore_errors=True)
    return lambda: recordmill.build(f"{_parquet_folder(name, folder)}/*.parquet", out)


def tfds(name: str, folder: str, out: str) -> Callable[[], object]:
    """A build of the files by TensorFlow Datasets, from the same function."""
    import tensorflow as tf
    import tensorflow_datasets

    class Lines(tensorflow_datasets.core.GeneratorBasedBuilder):
        VERSION = tensorflow_datasets.core.Version("1.0.0")

        def _info(self) -> Any:
            tensor = tensorflow_datasets.features.Tensor
            features = {
                "lines": {"number": tf.int64, "action": tensor(shape=(14,), dtype=tf.float32)},
                "wav": {"second": tf.int64, "mel": tensor(shape=(98, _BANDS), dtype=tf.float32)},
            }[name]
            return tensorflow_datasets.core.DatasetInfo(
                builder=self, features=tensorflow_datasets.features.FeaturesDict(features)
            )

        def _split_generators(self, _: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[str, dict[str, Any]]]:
            for path in sorted(Path(folder).iterdir()):
                for number, record in enumerate(PARSERS[name](str(path))):
                    yield f"{path.name} {number}", record

    shutil.rmtree(out, ignore_errors=True)
    builder = Lines(data_dir=out)
    return lambda: builder.download_and_prepare()


def write_inputs(name: str, folder: Path, files: int, rows: int) -> None:
    """Writes the files of a parser, if the folder does not exist."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(files):
        if name == "wav":
            with wave.open(str(folder / f"{number:03d}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(_RATE)
                samples = random.normal(scale=3000, size=rows // 100 * _RATE)
                file.writeframes(samples.astype("<i2").tobytes())
        else:
            np.savetxt(folder / f"{number:03d}.txt", random.normal(size=(rows, 14)), "%.6f")


def jobs_of(name: str, folder: str, out: str, *, with_tfds: bool) -> dict[str, Sequence[str]]:
    """Returns the commands for `compare`."""
    functions = ["loop", "build", "parquet"]
    if with_tfds and name != "batches":
        functions.append("tfds")
    return {
        f"{name}: {function}": [f"user_parser:{function}", name, folder, out]
        for function in functions
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parsers", nargs="+", choices=PARSERS, default=list(PARSERS))
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-tfds", action="store_true")
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    args = parser.parse_args()
    # As in the processes of a build. With more threads, matrix products spin while they wait.
    os.environ["OMP_NUM_THREADS"] = "1"
    print(machine())
    for name in args.parsers:
        text_or_wav = "wav" if name == "wav" else "lines"
        inputs = Path(args.folder, f"{text_or_wav}-{args.files}-{args.rows}")
        write_inputs(name, inputs, args.files, args.rows)
        out = os.path.join(args.folder, "out-parser")
        run("user_parser:write_parquet", name, str(inputs), out)
        compare(jobs_of(name, str(inputs), out, with_tfds=not args.no_tfds), args.rounds)


if __name__ == "__main__":
    main()
