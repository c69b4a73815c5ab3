"""The classes that folders name: the files beside the class folders (`without_strays`), and the classes held against
those that a given schema names (`known_classes`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.option_names import option
from recordmill.schemas.splits import SPLIT_WORDS
from recordmill.sources.inputs.layout import AUTO, FOLDERS, NONE, Layout, read_layout
from recordmill.storage.listed.files import FileTable, counted, where_none
from recordmill.storage.listing import Root

LEAVE, KEEP, ERROR, REJECT = "leave", "keep", "error", "reject"
STRAYS, UNKNOWN_CLASSES = (LEAVE, KEEP, ERROR), (ERROR, REJECT)  # what the options may say
_SHOWN = 3  # names in a note


def without_strays(
    files: FileTable, roots: Sequence[Root], *, split_from: str, class_from: str, strays: str
) -> tuple[FileTable, Layout, tuple[str, ...]]:
    """(the files, what their folders say, notes) without those that stand beside the folders of classes and splits:
    word lists, indices and the like, that have no label.

    strays: LEAVE them out, KEEP them without a label, or ERROR.

    Raises:
        UsageError: as read_layout; there are strays and strays is ERROR, or they are as many as the files in folders.
    """
    kept, notes = files, list[str]()
    if class_from == NONE or strays == KEEP:
        return kept, read_layout(kept, roots, split_from=split_from, class_from=class_from), ()
    if split_from in (AUTO, FOLDERS) and _has_splits_inside(kept):
        inside = np.fromiter(("/" in name for name in kept.names()), np.bool_, len(kept))
        notes += _left_out(kept, ~inside, "the folders of the splits and have no split", "move them into one", strays)
        kept = kept.filter(inside)
    layout = read_layout(kept, roots, split_from=split_from, class_from=class_from)
    if layout.class_names and not (labelled := ~where_none(layout.classes)).all():
        remedy = f"say {option('strays', 'keep')} to have them without a label"
        notes += _left_out(kept, ~labelled, "every class folder and have no label", remedy, strays)
        kept = kept.filter(labelled)
        layout = replace(
            layout,
            splits=layout.splits.filter(pa.array(labelled)),
            classes=layout.classes.filter(pa.array(labelled)),
            notes=tuple(note for note in layout.notes if not note.endswith("have no label")),
        )
    return kept, layout, (*notes, *_uneven(layout))


def _has_splits_inside(files: FileTable) -> bool:
    """Whether there are folders of splits and classes (`train/pos/`), and all other files directly in an INPUT."""
    inside, is_deep = 0, False
    for name in files.names():
        if "/" in name:
            top, *more = name.split("/")
            if top.lower() not in SPLIT_WORDS:
                return False
            inside, is_deep = inside + 1, is_deep or len(more) > 1
    return is_deep and inside < len(files)


def _left_out(files: FileTable, left: npt.NDArray[np.bool_], beside: str, remedy: str, strays: str) -> list[str]:
    """left: [files] of which they are."""
    if not left.any():
        return []
    count, first = np.count_nonzero(left), np.flatnonzero(left)[:_SHOWN].tolist()
    names = ", ".join(files[at].name for at in first) + (", ..." if count > _SHOWN else "")
    what = f"{count:,} of {len(files):,} file(s) stand outside {beside}: {names}"
    if strays == ERROR or 2 * count >= len(files):
        raise UsageError(f"{what}; move them away, {remedy}, or {option('class_from', 'none')} for no labels")
    return [f"left out: {what} (to have them, {remedy})"]


def _uneven(layout: Layout) -> list[str]:
    """A note on classes that some splits lack (`unsup` of reviews without a rating)."""
    by_class: defaultdict[str, set[str]] = defaultdict(set)
    names, words = layout.classes.dictionary.to_pylist(), layout.splits.dictionary.to_pylist()
    pairs = layout.classes.indices.to_numpy().astype(np.int64) * len(words) + layout.splits.indices.to_numpy()
    for name, split in ((names[pair // len(words)], words[pair % len(words)]) for pair in np.unique(pairs).tolist()):
        if name is not None and split is not None:
            by_class[name].add(split)
    splits = set().union(*by_class.values())
    some = [f"{name!r} (in {', '.join(sorted(has))} only)" for name, has in sorted(by_class.items()) if has != splits]
    shown = ", ".join(some[:_SHOWN]) + (", ..." if len(some) > _SHOWN else "")
    return [f"classes that not every split has: {shown}"] if some else []


def known_classes(
    files: FileTable, classes: pa.DictionaryArray, given: Sequence[str], unknown: str
) -> tuple[npt.NDArray[np.bool_], list[Reject]]:
    """(which files have a class that is given, or none at all; the others as rejects).

    unknown: what becomes of a file whose class is not among the given ones: ERROR or REJECT.

    Raises:
        DataError: a class is not among the given ones, and unknown is ERROR.
    """
    known, words = frozenset(given), classes.dictionary.to_pylist()
    lacking = sorted(name for name in counted(classes) if name is not None and name not in known)
    shown = ", ".join(map(repr, given[:20])) + (", ..." if len(given) > 20 else "")
    is_known = np.array([name is None or name in known for name in words], np.bool_)
    numbers = classes.indices.to_numpy()
    if lacking and unknown == ERROR:
        example = files[int(np.argmax(numbers == words.index(lacking[0])))].name
        raise DataError(
            f"the folder says class {lacking[0]!r}, which the schema does not name; its classes are {shown}. Add it to "
            f"the schema, or say {option('unknown_class', 'reject')}",
            source=example,
        )
    keep = is_known[numbers]
    message = f"is none of the classes that the schema names: {shown}"
    rejects = [
        Reject(files[at].name, "", "class", f"class {words[numbers[at]]!r} {message}")
        for at in np.flatnonzero(~keep).tolist()
    ]
    return keep, rejects
