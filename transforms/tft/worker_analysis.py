"""The analysis by workers that share nothing but OUT, in a store, too: each finds what is in a group of units by a
pipeline of its own process, and what it found, which is small, goes to OUT as a file of a known group.

tf.Transform itself keeps graphs and vocabularies in a folder that all workers must see as one on a disk. What is known
of all groups becomes the transform where the files are fetched.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recordmill.base.errors import DataError
from recordmill.base.progress import progress_of
from recordmill.building.plan import BuildPlan
from recordmill.building.workers.shared_files import (
    ATTEMPTS_FOLDER,
    SHARED,
    NotSharedError,
    SharedFolder,
    SharedPlan,
    workbench,
)
from recordmill.preprocessing.analysis_cache import KNOWN, CachedGroup, Groups, open_group, write_group
from recordmill.schemas.feature import Schema
from recordmill.shards.manifest import TRANSFORM_FOLDER
from recordmill.storage.files import put_if_absent, read_range, stat
from recordmill.storage.folders import fetch_file, join, make_folder, paths_in
from recordmill.transforms.beam_types import AsIter, Create, FlatMap, Map, PCollection, Pipeline, PTransform, Reshuffle
from recordmill.transforms.local_run import run_locally
from recordmill.transforms.tft.analysis import FitWithCache, read_report, split_batches, temporary

_LIST = "fit.json"
_NAME = re.compile(r"[0-9a-f]{12}-[0-9a-f]{32}-[0-9a-f]{32}\.known", re.ASCII)

PreprocessingFunction = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class AnalysisPart:
    """What an attempt found in a group of units: the file's name below the run's folder, and its size."""

    group: int
    name: str
    size_bytes: int


@dataclass
class FitParts(PTransform):
    """Numbers of groups of units to files in OUT, of which a list is put there: a PCollection with their number.

    plan: as it lies in OUT. split, inputs, function: as in `FitTransform`.
    """

    plan: SharedPlan
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
    group: int, plan: SharedPlan, split: str, inputs: Schema, function: PreprocessingFunction
) -> Iterator[AnalysisPart]:
    """What tf.Transform's analysers find in a group of units; nothing where it has no record of the split."""
    job_folder = plan.job_folder
    with job_folder.attach().alive(), workbench(plan) as bench:
        if next(split_batches((group,), bench.reference(), split, inputs), None) is None:
            return
        _analyse(bench, group, split, inputs, function)
        (entries,) = read_report(bench.folder)[0].values()
        write_group(bench.folder, _context(job_folder), (), entries)
        (found,) = paths_in(Path(bench.folder), "*.known")
        size = stat(str(found)).size_bytes
        yield AnalysisPart(group, os.path.basename(job_folder.hand_over(str(found), ATTEMPTS_FOLDER)), size)


def _analyse(bench: BuildPlan, group: int, split: str, inputs: Schema, function: PreprocessingFunction) -> None:
    assert bench.source is not None
    groups = Groups(np.zeros(len(bench.source.files), np.int16), ())
    target = os.path.join(bench.folder, "data", TRANSFORM_FOLDER)  # a transform of this group alone, which nobody wants

    def construct(pipeline: Pipeline) -> None:
        fit = FitWithCache(bench.reference(), split, inputs, function, target, bench.folder, groups)
        with temporary(bench.folder):
            _ = pipeline | "Group" >> Create([(group,)]) | "Fit" >> fit

    run_locally(construct, (), bench.folder, progress_of(bench.folder))


def _context(job_folder: SharedFolder) -> str:
    """What the files of this build have in common, and no others."""
    return job_folder.id.ljust(32, "0")


def list_parts(_: None, made: Iterable[AnalysisPart], plan: SharedPlan) -> int:
    """Put the list of what the engine accounted for into OUT; gives how many they are. The first list stays."""
    listed = sorted((asdict(one) for one in made), key=lambda one: int(one["group"]))
    put_if_absent(plan.job_folder.run(SHARED, _LIST), json.dumps(listed).encode())
    return len(listed)


def fetch_parts(job_folder: SharedFolder, files: int, folder: str) -> Groups:
    """What the workers found, copied into a folder of this machine. files: how many inputs there are.

    Raises:
        NotSharedError: a file is not there. DataError: one is not what a worker writes.
    """
    make_folder(folder)
    known = tuple(_fetch(job_folder, part, folder) for part in _listed(job_folder))
    if any(group.entries.keys() != known[0].entries.keys() for group in known):
        raise DataError("workers were given another transform than others", source=job_folder.run(ATTEMPTS_FOLDER))
    return Groups(np.full(files, KNOWN, np.int16), known)


def _fetch(job_folder: SharedFolder, part: AnalysisPart, folder: str) -> CachedGroup:
    path, copy = job_folder.run(ATTEMPTS_FOLDER, part.name), join(folder, part.name)
    try:
        if (size := stat(path).size_bytes) != part.size_bytes:
            raise DataError(f"{size} bytes, where {part.size_bytes} were written", source=path)
        fetch_file(path, copy)
    except FileNotFoundError:
        raise NotSharedError(path, job_folder.out, "this machine,") from None
    return open_group(copy, _context(job_folder))


def _listed(job_folder: SharedFolder) -> list[AnalysisPart]:
    path = job_folder.run(SHARED, _LIST)
    try:
        found = [AnalysisPart(**one) for one in json.loads(read_range(path).tobytes())]
        if all(_NAME.fullmatch(part.name) for part in found):
            return found
    except FileNotFoundError:
        raise NotSharedError(path, job_folder.out, "this machine,") from None
    except (ValueError, TypeError):
        pass
    raise DataError("is not what this build has written there", source=path)
