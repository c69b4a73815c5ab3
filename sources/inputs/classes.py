"""The classes that folders name: the files beside the class folders (`without_strays`), and the classes held against
those that a given schema names (`known_classes`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.option_names import option
from recordmill.schemas.splits import SPLIT_WORDS
from recordmill.sources.inputs.layout import AUTO, FOLDERS, NONE, Layout, read_layout
from recordmill.storage.listed.coded import pick
from recordmill.storage.listed.files import InputFile, chosen, where
from recordmill.storage.listing import Root

LEAVE, KEEP, ERROR, REJECT = "leave", "keep", "error", "reject"
STRAYS, UNKNOWN_CLASSES = (LEAVE, KEEP, ERROR), (ERROR, REJECT)  # what the options may say
_SHOWN = 3  # names in a note


def without_strays(
    files: Sequence[InputFile], roots: Sequence[Root], *, split_from: str, class_from: str, strays: str
) -> tuple[Sequence[InputFile], Layout, tuple[str, ...]]:
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
        inside = where(kept, _is_inside)
        notes += _left_out(kept, ~inside, "the folders of the splits and have no split", "move them into one", strays)
        kept = chosen(kept, inside)
    layout = read_layout(kept, roots, split_from=split_from, class_from=class_from)
    if layout.class_names and None in layout.classes:
        labelled = np.fromiter((name is not None for name in layout.classes), np.bool_, len(kept))
        remedy = f"say {option('strays', 'keep')} to have them without a label"
        notes += _left_out(kept, ~labelled, "every class folder and have no label", remedy, strays)
        kept = chosen(kept, labelled)
        layout = replace(
            layout,
            splits=pick(layout.splits, labelled),
            classes=pick(layout.classes, labelled),
            notes=tuple(note for note in layout.notes if not note.endswith("have no label")),
        )
    return kept, layout, (*notes, *_uneven(layout))


def _is_inside(file: InputFile) -> bool:
    return "/" in file.name


def _has_splits_inside(files: Sequence[InputFile]) -> bool:
    """Whether there are folders of splits and classes (`train/pos/`), and all other files directly in an INPUT."""
    inside, is_deep = 0, False
    for file in files:
        if _is_inside(file):
            top, *more = file.name.split("/")
            if top.lower() not in SPLIT_WORDS:
                return False
            inside, is_deep = inside + 1, is_deep or len(more) > 1
    return is_deep and inside < len(files)


def _left_out(
    files: Sequence[InputFile], left: npt.NDArray[np.bool_], beside: str, remedy: str, strays: str
) -> list[str]:
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
    for name, split in zip(layout.classes, layout.splits, strict=True):
        if name is not None and split is not None:
            by_class[name].add(split)
    splits = set().union(*by_class.values())
    some = [f"{name!r} (in {', '.join(sorted(has))} only)" for name, has in sorted(by_class.items()) if has != splits]
    shown = ", ".join(some[:_SHOWN]) + (", ..." if len(some) > _SHOWN else "")
    return [f"classes that not every split has: {shown}"] if some else []


def known_classes(
    files: Sequence[InputFile], classes: Sequence[str | None], given: Sequence[str], unknown: str
) -> tuple[npt.NDArray[np.bool_], list[Reject]]:
    """(which files have a class that is given, or none at all; the others as rejects).

    unknown: what becomes of a file whose class is not among the given ones: ERROR or REJECT.

    Raises:
        DataError: a class is not among the given ones, and unknown is ERROR.
    """
    known = frozenset(given)
    lacking = sorted({name for name in classes if name is not None and name not in known})
    shown = ", ".join(map(repr, given[:20])) + (", ..." if len(given) > 20 else "")
    if lacking and unknown == ERROR:
        example = files[classes.index(lacking[0])].name
        raise DataError(
            f"the folder says class {lacking[0]!r}, which the schema does not name; its classes are {shown}. Add it to "
            f"the schema, or say {option('unknown_class', 'reject')}",
            source=example,
        )
    keep = np.fromiter((name is None or name in known for name in classes), np.bool_, len(files))
    message = f"is none of the classes that the schema names: {shown}"
    rejects = [
        Reject(file.name, "", "class", f"class {name!r} {message}")
        for file, name, kept in zip(files, classes, keep, strict=True)
        if not kept
    ]
    return keep, rejects
