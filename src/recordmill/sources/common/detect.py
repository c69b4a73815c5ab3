"""Detects the kind of data in a listing (`detect_kind`), and drops files that lie beside it (`filter_kind`).

The content of a sample of files decides, a few per extension; an extension is a hint only. Papers, code, markup and
annotations beside the data are no candidates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.sources.common.content import (
    BINARY_CONTENT,
    JSON_ARRAY,
    JSON_DOCUMENT,
    JSONL_CONTENT,
    OTHER_CONTENT,
    TEXT_CONTENT,
    Content,
    extension,
    is_paper,
    sniff_file,
)
from recordmill.sources.registry import KIND_NAMES, KINDS, find_kind
from recordmill.storage.file_table import FileTable
from recordmill.storage.listing import Listing

SAMPLE_FILES = 8  # per extension: enough to see that an extension is used for two things
_TEXTUAL = (*(kind.name for kind in KINDS if kind.textual), OTHER_CONTENT)


@dataclass(frozen=True)
class _Group:
    """The files of one extension, papers apart. kinds: of those sampled."""

    ending: str
    papers: bool
    files: int
    kinds: Counter[str]
    example: Content  # of the most common kind
    example_name: str

    @property
    def kind(self) -> str:
        return self.kinds.most_common(1)[0][0]


def detect_kind(listing: Listing) -> tuple[str, str]:
    """Returns (kind, why it is that) of the data: the kind of more than half of all files that hold data.

    Raises:
        UsageError: there is no such kind; it names the candidates and what to type.
    """
    groups = _groups(listing.files)
    counts: defaultdict[str, float] = defaultdict(float)
    for group in groups:
        for kind, sampled in group.kinds.items():
            counts[kind] += group.files * sampled / group.kinds.total()
    data = {kind: counts[kind] for kind in KIND_NAMES if counts[kind] > 0}
    if not data and (array := next((group for group in groups if group.example.detail == JSON_ARRAY), None)):
        return JSONL_CONTENT, f"{JSONL_CONTENT}: {array.example_name} is {JSON_ARRAY}"
    if not data and counts[OTHER_CONTENT] > 0 and not any(group.example.detail == JSON_DOCUMENT for group in groups):
        return TEXT_CONTENT, f"text: nothing but {_endings(groups, (OTHER_CONTENT,))}"
    if not data:
        first = max(groups, key=lambda group: (group.example.detail == JSON_DOCUMENT, group.files))
        raise UsageError(
            f"no data that is known here among {len(listing.files)} file(s): "
            f"{_endings(groups, (OTHER_CONTENT, BINARY_CONTENT))} ({first.example_name} is {first.example.detail}); "
            f"kinds are {', '.join(KIND_NAMES)}"
        )
    kind = max(data, key=lambda candidate: data[candidate])
    if 2 * data[kind] <= sum(data.values()):
        shown = "; ".join(
            f"{name} ({count:.0f} file(s), such as {_example(groups, name).example_name})"
            for name, count in data.items()
        )
        options = " or ".join(f"`recordmill build {name} ...`" for name in data)
        raise UsageError(f"which data is meant? There are {shown}. Say {options}, or name the files")
    example = _example(groups, kind)
    why = f"{kind}: {example.example_name} is {example.example.detail}"
    beside = _endings(groups, [name for name in (*KIND_NAMES, OTHER_CONTENT, BINARY_CONTENT) if name != kind])
    return kind, f"{why}; beside it: {beside}" if beside else why


def filter_kind(listing: Listing, kind: str) -> Listing:
    """Returns the listing without files that hold no data of this kind, counted by extension in its notes; files given
    by their own name stay.

    For kinds that are all text, the extensions that look like the kind stay; if none does, all that are
    text.

    Raises:
        UsageError: nothing is left.
    """
    textual = find_kind(kind).textual
    groups = _groups(listing.files)
    wanted = [group for group in groups if group.kind == kind]
    if not wanted and kind == JSONL_CONTENT:
        wanted = [group for group in groups if group.example.detail == JSON_ARRAY]
    if not wanted and textual:
        wanted = [group for group in groups if group.kind in _TEXTUAL]
    keys = {(group.ending, group.papers) for group in wanted}
    keep = np.fromiter((_key(name) in keys for name in listing.files.names()), np.bool_, len(listing.files))
    keep |= listing.are_named(~keep)
    if not keep.any():
        raise UsageError(
            f"no {kind} among {len(listing.files)} file(s): "
            f"{_endings(groups, (*KIND_NAMES, OTHER_CONTENT, BINARY_CONTENT))}"
        )
    files = listing.files.filter(keep)
    left = Counter(extension(name) for name in listing.files.filter(~keep).names())
    ignored = {**listing.ignored, **{f"of another kind: {_dotted(ending)}": count for ending, count in left.items()}}
    return replace(listing, files=files, ignored=ignored, notes=(*listing.notes, *note_extensions(kind, files, left)))


def note_extensions(kind: str, files: FileTable, left: Mapping[str, int]) -> tuple[str, ...]:
    """Notes of the extensions of the files of a kind, if these are several, and of those that were left beside them."""
    taken = Counter(map(extension, files.names()))
    return (
        *((f"files of the {kind}: {tally_extensions(taken)}",) if len(taken) > 1 else ()),
        *((f"ignored beside the {kind}: {tally_extensions(left)}",) if left else ()),
    )


def _key(name: str) -> tuple[str, bool]:
    return extension(name), is_paper(name)


def _groups(files: FileTable) -> list[_Group]:
    counts = Counter(map(_key, files.names()))
    seen = _sampled(files, counts)
    groups = []
    for (ending, papers), count in sorted(counts.items()):
        sniffed = seen[ending, papers]
        kinds = Counter(content.kind for content, _ in sniffed)
        example, name = next(item for item in sniffed if item[0].kind == kinds.most_common(1)[0][0])
        groups.append(_Group(ending, papers, count, kinds, example, name))
    return groups


def _sampled(
    files: FileTable, counts: Mapping[tuple[str, bool], int]
) -> dict[tuple[str, bool], list[tuple[Content, str]]]:
    """Returns (what it holds, name) of a few files of each group, evenly from its first to its last."""
    wanted = {
        key: {int(at * max(count / SAMPLE_FILES, 1.0)) for at in range(min(SAMPLE_FILES, count))}
        for key, count in counts.items()
    }
    seen: dict[tuple[str, bool], list[tuple[Content, str]]] = {key: [] for key in counts}
    passed = Counter[tuple[str, bool]]()
    for at, name in enumerate(files.names()):
        key = _key(name)
        if passed[key] in wanted[key]:
            seen[key].append((sniff_file(files[at]), name))
        passed[key] += 1
    return seen


def _example(groups: Sequence[_Group], kind: str) -> _Group:
    """Returns the largest group of that kind, or with any file of it."""
    return max(groups, key=lambda group: (group.kind == kind, group.kinds[kind], group.files))


def _endings(groups: Sequence[_Group], kinds: Sequence[str]) -> str:
    counts: Counter[str] = Counter()
    for group in groups:
        if group.kind in kinds:
            counts[group.ending] += group.files
    return tally_extensions(counts)


def tally_extensions(counts: Mapping[str, int]) -> str:
    """Returns how many files have which extension, for people."""
    return ", ".join(f"{count} {_dotted(ending)}" for ending, count in sorted(counts.items()))


def _dotted(ending: str) -> str:
    return f".{ending}" if ending else "without extension"
