"""The analysis by workers that share nothing but OUT, in a store, too: each analyses a group of units by a pipeline of
its own process, and what its analysers found, which is small, goes to OUT as a file.

tf.Transform itself keeps graphs and vocabularies in a folder that all workers must see as one on a disk. What was found
in all groups becomes the transform where the files are fetched. A file holds

    length of the list (4 bytes), keys of tf.Transform's cache in hex as a JSON list, elements

and an element is the number of its key, its length (4 bytes each, little-endian) and its bytes.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tensorflow_transform.beam as tft_beam
from tensorflow_transform.beam.analysis_graph_builder import get_analysis_dataset_keys
from tensorflow_transform.beam.analyzer_cache import DatasetCache, DatasetKey
from tfx_bsl.tfxio.tensor_adapter import TensorAdapter

from recordmill.base.errors import DataError
from recordmill.base.progress import progress_of
from recordmill.building.workers import shared_files
from recordmill.schemas.feature import Schema
from recordmill.storage.files import create_file, open_file, put_if_absent, read_range, stat, write_all
from recordmill.storage.folders import fetch_file, join, make_folder
from recordmill.transforms.beam_types import (
    AsIter,
    Create,
    FlatMap,
    Flatten,
    Map,
    PCollection,
    Pipeline,
    PTransform,
    Reshuffle,
    TaggedOutput,
)
from recordmill.transforms.local_run import run_locally
from recordmill.transforms.tft.analysis import adapter, publish, read_split, split_batches, temporary

_LIST = "fit.json"
_NAME = re.compile(r"[0-9a-f]{12}-analysis\.found", re.ASCII)
_DATASET = "split"  # of tf.Transform's caches
_SIZE, _ELEMENT = struct.Struct("<I"), struct.Struct("<II")

PreprocessingFunction = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class AnalysisPart:
    """A file of what an attempt found in a group of units.

    Attributes:
        group: The group's number.
        name: The file's name below the run's folder.
        size_bytes: Its size.
    """

    group: int
    name: str
    size_bytes: int


@dataclass
class AnalyzeGroups(PTransform):
    """Turns numbers of groups of units into files in OUT, of which a list is put there: gives their number.

    Attributes:
        plan: as it lies in OUT.
        split: as in `FitTransform`.
        inputs: as in `FitTransform`.
        function: as in `FitTransform`.
    """

    plan: shared_files.SharedPlan
    split: str
    inputs: Schema
    function: PreprocessingFunction

    def expand(self, groups: PCollection) -> PCollection:  # group -> int
        made = (
            groups
            | "Spread" >> Reshuffle()
            | "Analyze" >> FlatMap(analyse_group, self.plan, self.split, self.inputs, self.function)
            | "Account" >> Reshuffle()  # from here on the engine knows which attempt counts
        )
        # One element, also of no groups: with it the list is made once, when all of it is there.
        return groups.pipeline | "Once" >> Create([None]) | "List" >> Map(list_parts, AsIter(made), self.plan)


def analyse_group(
    group: int, plan: shared_files.SharedPlan, split: str, inputs: Schema, function: PreprocessingFunction
) -> Iterator[AnalysisPart]:
    """Analyses a group of units; gives nothing where it has no record of the split."""
    job_folder = plan.job_folder
    with job_folder.attach().alive(), shared_files.workbench(plan) as bench:
        if next(split_batches((group,), bench.reference(), split, inputs), None) is None:
            return
        path = join(bench.folder, "analysis.found")

        def construct(pipeline: Pipeline) -> None:
            with temporary(bench.folder):
                batches = read_split(pipeline | "Group" >> Create([(group,)]), bench.reference(), split, inputs)
                keep_analyses(batches, inputs, function, path)

        run_locally(construct, (), bench.folder, progress_of(bench.folder))
        size = stat(path).size_bytes
        yield AnalysisPart(group, os.path.basename(job_folder.hand_over(path, shared_files.ATTEMPTS_FOLDER)), size)


def keep_analyses(batches: PCollection, inputs: Schema, function: PreprocessingFunction, path: str) -> None:
    """Writes what tf.Transform's analysers compute of the batches to a file."""
    pipeline = batches.pipeline
    analysis = "Analyze" >> tft_beam.AnalyzeDatasetWithCache(function, pipeline)
    _, caches = ({DatasetKey(_DATASET): batches}, {}, adapter(inputs)) | analysis
    cached = dict(sorted((key, elements) for cache in caches.values() for key, elements in cache.cache_dict.items()))
    numbered: Any = (
        pipeline | "None" >> Create([]),
        *(each | f"Number{number}" >> Map(_numbered, number) for number, each in enumerate(cached.values())),
    )
    _ = pipeline | "Once" >> Create([path]) | "Keep" >> Map(write_analyses, list(cached), AsIter(numbered | Flatten()))


def _numbered(element: bytes, number: int) -> tuple[int, bytes]:
    return number, element


def write_analyses(path: str, keys: Sequence[bytes], elements: Iterable[tuple[int, bytes]]) -> None:
    """Writes a file of what was found.

    Args:
        elements: each with the number of its key.
    """
    header = json.dumps([key.hex() for key in keys]).encode()
    with create_file(path) as file:
        write_all(file, _SIZE.pack(len(header)) + header)
        for number, element in elements:
            write_all(file, _ELEMENT.pack(number, len(element)) + element)


def read_keys(path: str) -> list[bytes]:
    """The keys of a file of what was found."""
    with open_file(path) as file:
        (size,) = _SIZE.unpack(file.read(_SIZE.size))
        return [bytes.fromhex(key) for key in json.loads(file.read(size))]


def read_analyses(path: str) -> Iterator[Any]:
    """The elements of such a file, each under the number of its key."""
    with open_file(path) as file:
        file.read(*_SIZE.unpack(file.read(_SIZE.size)))
        while head := file.read(_ELEMENT.size):
            number, size = _ELEMENT.unpack(head)
            yield TaggedOutput(str(number), file.read(size))


@dataclass
class FitAnalyses(PTransform):
    """Fits the saved transform from files of what workers analysed, into the folder that `FitTransform` makes.

    Records are read again for analysers that need the result of others, or that tf.Transform keeps nothing of. The
    other fields are as in `FitTransform`.

    Attributes:
        analyses: paths of the files.
    """

    plan: shared_files.SentPlan
    split: str
    inputs: Schema
    function: PreprocessingFunction
    target: str
    analyses: Sequence[str]

    def expand(self, packs: PCollection) -> PCollection:  # (group, ...) -> path
        dataset, config = DatasetKey(_DATASET), adapter(self.inputs)
        tags = {key: str(number) for number, key in enumerate(read_keys(self.analyses[0]))}
        elements: Any = (
            packs.pipeline
            | "Found" >> Create(self.analyses)
            | "Elements" >> FlatMap(read_analyses).with_output_types(bytes).with_outputs(*tags.values())
        )
        known = {dataset: DatasetCache({key: elements[tag] for key, tag in tags.items()}, None)}
        specs = TensorAdapter(config).OriginalTypeSpecs()
        is_read = get_analysis_dataset_keys(self.function, specs, {dataset}, known, False)
        batches = read_split(packs, self.plan, self.split, self.inputs) if is_read else None
        analysis = "Analyze" >> tft_beam.AnalyzeDatasetWithCache(self.function, packs.pipeline)
        (model, metadata), _ = ({dataset: batches}, known, config) | analysis
        return publish(packs.pipeline, self.target, model, metadata)


def list_parts(_: None, made: Iterable[AnalysisPart], plan: shared_files.SharedPlan) -> int:
    """Puts the list of what the engine accounted for into OUT; gives how many they are. The first list stays."""
    listed = sorted((asdict(one) for one in made), key=lambda one: int(one["group"]))
    put_if_absent(plan.job_folder.run(shared_files.SHARED, _LIST), json.dumps(listed).encode())
    return len(listed)


def fetch_analyses(job_folder: shared_files.SharedFolder, folder: str) -> list[str]:
    """Copies what the workers found into a folder of this machine.

    Returns:
        Paths of the copies.

    Raises:
        NotSharedError: A file is not there.
        DataError: One is not what a worker wrote.
    """
    make_folder(folder)
    paths = [_fetch(job_folder, part, folder) for part in _listed(job_folder)]
    if any(read_keys(path) != read_keys(paths[0]) for path in paths):
        raise DataError(
            "workers were given another transform than others", source=job_folder.run(shared_files.ATTEMPTS_FOLDER)
        )
    return paths


def _fetch(job_folder: shared_files.SharedFolder, part: AnalysisPart, folder: str) -> str:
    path, copy = job_folder.run(shared_files.ATTEMPTS_FOLDER, part.name), join(folder, part.name)
    try:
        if (size := stat(path).size_bytes) != part.size_bytes:
            raise DataError(f"{size} bytes, where {part.size_bytes} were written", source=path)
        fetch_file(path, copy)
    except FileNotFoundError:
        raise shared_files.NotSharedError(path, job_folder.out, "this machine,") from None
    return copy


def _listed(job_folder: shared_files.SharedFolder) -> list[AnalysisPart]:
    path = job_folder.run(shared_files.SHARED, _LIST)
    try:
        parts = [AnalysisPart(**one) for one in json.loads(read_range(path).tobytes())]
        if all(_NAME.fullmatch(part.name) for part in parts):
            return parts
    except FileNotFoundError:
        raise shared_files.NotSharedError(path, job_folder.out, "this machine,") from None
    except (ValueError, TypeError):
        pass
    raise DataError("is not what this build has written there", source=path)
