"""Which files of a build a fit need not analyse again: those of groups that a cache holds for this transform.

A file stands in the cache as a digest of its content and of all that decides which of its records the analysers see,
and how; what is common to all files (the transform, the schema, how this kind of input is read, how records are
divided into splits, versions) is the context. A file that is new, or changed in any of it, is in no group.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.building.order import DEFAULT_SPLIT, file_identity
from recordmill.building.plan import BuildPlan
from recordmill.preprocessing.analysis_cache import (
    KNOWN,
    UNUSED,
    CachedGroup,
    Groups,
    choose_groups,
    find_groups,
    write_group,
)
from recordmill.preprocessing.metadata import Fit
from recordmill.schemas.tfmd import to_pbtxt
from recordmill.sources.common.contract import RepeatableSource, Source
from recordmill.sources.common.lines import STREAMED
from recordmill.storage.digest import digest_file
from recordmill.storage.file_table import SPLIT_COLUMN
from recordmill.storage.folders import make_folder, real_path
from recordmill.storage.walk import within

# New files become a group for each 256 MiB, at most 8: when a file of a group changes, the others are analysed again,
# and a group costs tf.Transform a graph and a pass of its own, about what 50 MB take.
_GROUP_BYTES, _MOST_GROUPS = 256 << 20, 8
_FACTS_AT_ONCE = 1 << 12
_DERIVED = (
    SPLIT_COLUMN,
    STREAMED,
    "shard",
)  # columns of files that don't decide what their records hold, or that their content tells
_PACKAGES = ("recordmill", "tensorflow", "tensorflow-transform", "tfx-bsl")


@dataclass(frozen=True)
class FitCache:
    """What is known, and what is to be analysed and kept. folder: of the cache. members: [files] what stands for each
    file. damaged: how many files of the cache are none. is_undone: what it holds of this fit can't be used.
    """

    folder: str
    context: str
    members: tuple[bytes, ...]
    groups: Groups
    damaged: int
    is_undone: bool = False

    def anew(self, plan: BuildPlan) -> FitCache:
        """The same, of which nothing is used: all files are analysed, and what is found replaces what is there."""
        assert plan.source is not None
        return replace(self, groups=Groups(_of_file(self.members, plan.source.files.sizes, ()), ()), is_undone=True)

    def keep(self, run_folder: str) -> tuple[str, ...]:
        """Put what the job found in new groups into the cache; gives notes of what was analysed."""
        from recordmill.transforms.tft.analysis import read_report

        found, records, is_again = read_report(run_folder)
        for number, parts in found.items():
            members = [self.members[ordinal] for ordinal in np.flatnonzero(self.groups.of_file == number)]
            write_group(self.folder, self.context, members, parts)
        files, known = int(np.sum(self.groups.of_file != UNUSED)), int(np.sum(self.groups.of_file == KNOWN))
        said = (
            f"transform fitted on {files:,} files: {files - known:,} analysed ({records:,} records), {known:,} known "
            f"from {option('transform_cache')}"
            + (" and read again, for analysers that need what others find or that keep nothing" if is_again else "")
        )
        if self.is_undone:
            said += f"; what {option('transform_cache')} held of them could not be used, and is replaced"
        damage = f"{self.damaged} files of {option('transform_cache')} are damaged, and were not used"
        return (said, damage) if self.damaged else (said,)


def check_cache(folder: str, plan: BuildPlan) -> None:
    """Raises UsageError for a folder that can't be, or would become part of what is read or written."""
    assert plan.source is not None
    if not isinstance(plan.source, RepeatableSource):
        raise UsageError(f"{option('transform_cache')}: a Source of your own may read otherwise each time; drop it")
    out = Path(plan.folder).parent
    if within(real_path(folder), real_path(out)):
        raise UsageError(
            f"{option('transform_cache', folder)} lies in OUT, whose folders are the data set's; put it beside"
        )
    inside = next((file for file in plan.source.files if within(real_path(file.path), real_path(folder))), None)
    if inside is not None:
        raise UsageError(f"{option('transform_cache', folder)} holds the input {inside.name}; name a folder of its own")
    try:
        make_folder(folder, exist_ok=True, parents=True)
    except OSError as error:
        raise UsageError(f"{option('transform_cache', folder)}: {os.strerror(error.errno or 0)}") from None


def open_cache(folder: str, plan: BuildPlan, fit: Fit, function_digest: str) -> FitCache:
    """What of this fit the cache knows; groups that are used are copied into the run's folder."""
    assert plan.source is not None
    check_cache(folder, plan)
    context = _context(plan, fit, function_digest)
    used = _in_split(plan, fit.split)
    members = tuple(_members(plan, used))
    copies = Path(plan.folder, "known")
    make_folder(copies)
    groups, damaged = find_groups(folder, context, os.fspath(copies))
    known = choose_groups(groups, [member for member in members if member])
    numbers = _of_file(members, plan.source.files.sizes, known)
    return FitCache(folder, context, members, Groups(numbers, tuple(known)), damaged)


def _of_file(
    members: Sequence[bytes], sizes: npt.NDArray[np.int64], known: Sequence[CachedGroup]
) -> npt.NDArray[np.int16]:
    """[files] KNOWN, UNUSED or the number of its new group, which its digest decides."""
    left = Counter(member for group in known for member in group.members)
    numbers = np.full(len(members), UNUSED, np.int16)
    for ordinal, member in enumerate(members):
        if member and left[member]:
            left[member] -= 1
            numbers[ordinal] = KNOWN
    new = np.array([bool(member) for member in members]) & (numbers != KNOWN)
    groups = min(max(int(np.dot(new, sizes)) // _GROUP_BYTES, 1), _MOST_GROUPS)
    numbers[new] = [member[0] % groups for member, is_new in zip(members, new, strict=True) if is_new]
    return numbers


def _in_split(plan: BuildPlan, split: str) -> npt.NDArray[np.bool_]:
    """[files] whether it may have records of the split."""
    assert plan.source is not None
    files = plan.source.files
    if plan.order.splits or SPLIT_COLUMN not in files.columns:
        return np.full(len(files), bool(plan.order.splits) or split == DEFAULT_SPLIT)
    is_meant = np.array([(word or DEFAULT_SPLIT) == split for word in files.words(SPLIT_COLUMN).to_pylist()], np.bool_)
    used: npt.NDArray[np.bool_] = is_meant[files.splits.indices.to_numpy()]
    return used


def _members(plan: BuildPlan, used: npt.NDArray[np.bool_]) -> Iterator[bytes]:
    """What stands for each file: b"" for those that are not used."""
    source = plan.source
    assert source is not None

    def content(ordinal: int) -> str:
        return (source.digests.get(ordinal) or digest_file(source.files[ordinal].path)) if used[ordinal] else ""

    is_placed_by_name = bool(plan.order.splits) and (plan.order.split_by or plan.order.key) is None
    contents = thread_map(content, range(len(used)), plan.threads)
    for file, digest, facts in zip(source.files, contents, _facts(source), strict=True):
        name = file_identity(file) if is_placed_by_name else ()
        yield hashlib.sha256(repr((digest, name, facts)).encode()).digest() if digest else b""


def _facts(source: Source) -> Iterator[tuple[str, ...]]:
    """How each file is read, beside what holds for all: by the columns that its kind has added."""
    names = [name for name in source.files.columns if name not in _DERIVED]
    for first in range(0, len(source.files), _FACTS_AT_ONCE):
        files = range(first, min(first + _FACTS_AT_ONCE, len(source.files)))
        columns = [column.to_pylist() for column in source.files.take(files, names).values()]
        yield from (tuple(repr(column[at]) for column in columns) for at in range(len(files)))


def _context(plan: BuildPlan, fit: Fit, function_digest: str) -> str:
    """What all files have in common, as a digest."""
    source = plan.source
    assert source is not None
    settings = source.read_settings if isinstance(source, RepeatableSource) else ()
    facts = {
        "versions": {name: _version(name) for name in _PACKAGES},
        "python": sys.version_info[:2],
        "function": function_digest,
        "schema": to_pbtxt(fit.raw),
        "inputs": fit.inputs.names,
        "split": fit.split,
        "splits": plan.order.splits,
        "split_seed": plan.order.split_seed,
        "split_by": plan.order.split_by or plan.order.key,
        "kind": source.kind,
        "read": [_said(value) for value in settings],
        "told": plan.source_options,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=repr).encode()).hexdigest()


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        value = frozenset(value.items())
    return repr(sorted(value) if isinstance(value, frozenset) else value)  # a set's order is each process's own


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
