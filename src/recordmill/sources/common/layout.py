"""Reads splits and class names off folders and file names (`FolderLayout`), applied only where they hold for all files,
and compares the classes with those of a given schema.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import Reject, UsageError
from recordmill.base.option_names import option
from recordmill.schemas.splits import SPLIT_WORDS, detect_split
from recordmill.storage.archives import MEMBER_SEPARATOR
from recordmill.storage.file_table import (
    FileTable,
    InputFile,
    count_column_values,
    encode_column,
    make_dictionary_column,
    null_column,
    null_mask,
)
from recordmill.storage.listing import InputRoot

AUTO_LAYOUT, FOLDER_LAYOUT, NAME_LAYOUT, NO_LAYOUT = "auto", "folders", "names", "none"

FolderKey = tuple[int, str]  # (root, folder relative to it)
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class FolderLayout:
    """splits, classes: per file, None where nothing says it. class_names: in the order of their UTF-8 bytes; empty
    where there are no classes. class_notes: those of the notes that speak of classes.
    """

    splits: pa.DictionaryArray
    classes: pa.DictionaryArray
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    class_notes: tuple[str, ...] = ()

    def without_classes(self) -> FolderLayout:
        """Returns the layout for files whose classes come from elsewhere: what is noted about folders as classes is
        then beside the point.
        """
        return FolderLayout(
            self.splits,
            null_column(len(self.splits)),
            (),
            tuple(note for note in self.notes if note not in self.class_notes),
        )


def read_layout(
    files: Sequence[InputFile],
    roots: Sequence[InputRoot],
    *,
    split_from: str = AUTO_LAYOUT,
    class_from: str | re.Pattern[str] = AUTO_LAYOUT,
) -> FolderLayout:
    """Reads the layout off the names of these files.

    split_from: `folders`, `names` (of files), `none`, or `auto`: the first of folders, INPUTs and file names that says
    it of every file. class_from: `folders`, `none`, `auto`: folders if they say at least two classes (one says
    nothing that a model could learn), or what `resolve_class_rule` gives.

    Raises:
        UsageError: with `auto`, some folders are called `train`, `test` or the like and some files lie outside all of
            those, so that either reading could mix test data into training; with `folders` or `names`, a file whose
            split they don't say.
    """
    table = FileTable.from_files(files)
    folders = _FileFolders.of(table)
    rest: dict[FolderKey, tuple[str, ...]] = {
        key: tuple(key[1].split("/")) if key[1] else () for key in folders.keys
    }
    splits, notes = _assign_splits(table, folders, rest, roots, split_from)
    classes = null_column(len(table))
    names: tuple[str, ...] = ()
    of_classes: list[str] = []
    if isinstance(class_from, re.Pattern):
        group = class_from.groupindex.get("label", 1)
        matches = map(class_from.search, table.names())
        classes = encode_column((match and match[group] for match in matches), len(table))
        names = tuple(sorted(name for name in classes.dictionary.to_pylist() if name is not None))
        if not names:
            raise UsageError(
                f"{option('label_regex', class_from.pattern)}: no file has such a name; {table[0].name} is one"
            )
    elif class_from != NO_LAYOUT:
        by_key = _assign_classes(rest, roots)
        names = tuple(sorted({name for name in by_key.values() if name is not None}))
        if len(names) == 1 and class_from == AUTO_LAYOUT:
            of_classes.append(
                f"all files in folders stand under {names[0]!r}: one folder says no classes"
            )
            names = ()
        if names:
            classes = folders.to_file_values(by_key)
            if bare := int(np.count_nonzero(null_mask(classes))):
                of_classes.append(f"{bare} file(s) outside every class folder have no label")
    return FolderLayout(splits, classes, names, (*notes, *of_classes), tuple(of_classes))


def resolve_class_rule(class_from: str, label_regex: str | None) -> str | re.Pattern[str]:
    """Returns what names the class: a regular expression for the names of files if there is one, else `class_from`.

    Raises:
        UsageError: It is none, or has no group.
    """
    if label_regex is None:
        return class_from
    try:
        pattern = re.compile(label_regex)
    except re.error as error:
        raise UsageError(
            f"{option('label_regex', label_regex)}: no regular expression: {error}"
        ) from None
    if not pattern.groups:
        raise UsageError(
            f"{option('label_regex', label_regex)}: it needs a group around the label: (...)"
        )
    return pattern


def read_partitions(files: FileTable) -> dict[str, pa.DictionaryArray]:
    """Returns the values of folders called `NAME=VALUE` for each file, by name, as Hive and Spark write tables."""
    folders = _FileFolders.of(files)
    found: dict[str, dict[FolderKey, str | None]] = {}
    for key in folders.keys:
        for name, equals, value in (part.partition("=") for part in key[1].split("/")):
            if name and equals:
                values = found.setdefault(unquote(name), {})
                if key in values:
                    raise UsageError(
                        f"{key[1]}: two of these folders are called {name}=...; rename one"
                    )
                values[key] = None if value == _HIVE_NULL else unquote(value)
    return {
        name: folders.to_file_values({key: by_key.get(key) for key in folders.keys})
        for name, by_key in found.items()
    }


def note_unused_partitions(files: FileTable, columns: Sequence[str]) -> tuple[str, ...]:
    """Returns a note on folders that are called `NAME=VALUE` where no such column is read."""
    lost = [name for name in read_partitions(files) if name not in columns]
    return (
        (f"what folders called {', '.join(f'{name}=...' for name in lost)} say becomes no column",)
        if lost
        else ()
    )


@dataclass(frozen=True)
class _FileFolders:
    """The folder of each file. folder_ids: [files], each one's place in keys."""

    folder_ids: npt.NDArray[np.uint32]
    keys: tuple[FolderKey, ...]

    @classmethod
    def of(cls, files: FileTable) -> _FileFolders:
        keys: dict[FolderKey, int] = {}
        each = ((root, name.rpartition("/")[0]) for root, name in files.roots_and_names())
        numbers = np.fromiter(
            (keys.setdefault(key, len(keys)) for key in each), np.uint32, len(files)
        )
        return cls(numbers, tuple(keys))

    def to_file_values(self, by_key: Mapping[FolderKey, str | None]) -> pa.DictionaryArray:
        """Returns what the folders say of each file."""
        words: dict[str | None, int] = {}
        places = [words.setdefault(by_key[key], len(words)) for key in self.keys]
        return make_dictionary_column(
            np.array(places, np.min_scalar_type(len(words)))[self.folder_ids], list(words)
        )


def _assign_splits(
    files: FileTable,
    folders: _FileFolders,
    rest: dict[FolderKey, tuple[str, ...]],
    roots: Sequence[InputRoot],
    split_from: str,
) -> tuple[pa.DictionaryArray, list[str]]:
    """Returns the split per file; takes the folder that says it out of rest."""
    none = null_column(len(files))
    if split_from == NO_LAYOUT or not files:
        return none, []
    notes: list[str] = []
    if split_from in (AUTO_LAYOUT, FOLDER_LAYOUT):
        by_folder = {key: _find_split_folder(parts) for key, parts in rest.items()}
        alone = split_from == AUTO_LAYOUT and _find_single_split_word(by_folder, rest)
        if alone:
            notes.append(_single_split_note("folder", alone, FOLDER_LAYOUT))
        elif all(by_folder.values()):
            for key, (at, _) in (
                (key, found) for key, found in by_folder.items() if found is not None
            ):
                rest[key] = rest[key][:at] + rest[key][at + 1 :]
            said = folders.to_file_values(
                {key: found[1] for key, found in by_folder.items() if found is not None}
            )
            return said, [f"splits by folder: {_format_counts(said)}"]
        _check_no_partial_splits(
            files, folders, by_folder, rest, demanded=split_from == FOLDER_LAYOUT
        )
    if split_from == AUTO_LAYOUT and (by_root := _splits_by_root(roots)):
        return folders.to_file_values({key: by_root[key[0]] for key in folders.keys}), [
            "splits by the INPUTs' own names"
        ]
    by_name = encode_column((detect_split(_stem(name)) for name in files.names()), len(files))
    has_none = null_mask(by_name)
    if not has_none.any():
        (one, *more) = count_column_values(by_name)
        if (
            split_from == AUTO_LAYOUT
            and not more
            and any(_stem(name).lower() not in SPLIT_WORDS for name in files.names())
        ):
            return none, [*notes, _single_split_note("file", one, NAME_LAYOUT)]
        return by_name, [f"splits by file name: {_format_counts(by_name)}"]
    if split_from == NAME_LAYOUT:
        raise UsageError(
            f"{files[int(np.argmax(has_none))].name}: this file's name says no split; rename it, or leave "
            f"{option('split_from', 'names')} out"
        )
    if some := int(np.count_nonzero(~has_none)):
        notes.append(f"no splits by file name: only {some} of {len(by_name)} names say one")
    return none, notes


def _single_split_note(what: str, split: str | None, ask: str) -> str:
    return (
        f"all {what} names hold a word for {split!r}, and one split says nothing: all records are in the default split "
        f"({option('split_from', ask)} takes the word)"
    )


def _find_single_split_word(
    by_folder: Mapping[FolderKey, tuple[int, str] | None], rest: Mapping[FolderKey, tuple[str, ...]]
) -> str:
    """Returns the split, if words in the names of all folders say the same one and none is called so; else empty."""
    if None in by_folder.values():
        return ""
    found = {key: at_split for key, at_split in by_folder.items() if at_split is not None}
    splits = {split for _, split in found.values()}
    plain = any(rest[key][at].lower() in SPLIT_WORDS for key, (at, _) in found.items())
    return splits.pop() if len(splits) == 1 and not plain else ""


def _find_split_folder(parts: Sequence[str]) -> tuple[int, str] | None:
    """Returns which folder, outermost first, says which split; whole names count before words in names."""
    for says in (lambda part: SPLIT_WORDS.get(part.lower()), detect_split):
        for at, part in enumerate(parts):
            if (found := says(part)) is not None:
                return at, found
    return None


def _check_no_partial_splits(
    files: FileTable,
    folders: _FileFolders,
    by_folder: Mapping[FolderKey, tuple[int, str] | None],
    rest: Mapping[FolderKey, tuple[str, ...]],
    *,
    demanded: bool,
) -> None:
    """Refuses folders that are called like splits beside files that lie in none of them."""
    plain = sorted(
        {
            rest[key][found[0]]
            for key, found in by_folder.items()
            if found is not None and rest[key][found[0]].lower() in SPLIT_WORDS
        }
    )
    if not plain and not demanded:
        return
    outside = np.flatnonzero(
        np.array([by_folder[key] is None for key in folders.keys])[folders.folder_ids]
    )
    said = f"folders name splits ({', '.join(plain)})" if plain else "no folder names a split"
    raise UsageError(
        f"{said}, but {len(outside)} file(s) lie outside them, such as {files[int(outside[0])].name}: move them, give "
        "the split folders alone as INPUT, "
        f"or say {option('split_from', 'none')} to take such folders as any other"
    )


def _splits_by_root(roots: Sequence[InputRoot]) -> list[str] | None:
    """Returns the split of each INPUT, if all are folders or archives called like splits, of at least two kinds."""
    found = [
        detect_split(_stem(root.label))
        if root.path.endswith(MEMBER_SEPARATOR[0])
        else SPLIT_WORDS.get(root.label.lower())
        for root in roots
    ]
    known = [split for split in found if split is not None]
    return known if len(known) == len(found) and len(set(known)) > 1 else None


def _assign_classes(
    rest: Mapping[FolderKey, tuple[str, ...]], roots: Sequence[InputRoot]
) -> dict[FolderKey, str | None]:
    labels = [root.label for root in roots]
    if (
        len(set(labels)) > 1
        and all(labels)
        and not any(rest.values())
        and _splits_by_root(roots) is None
    ):
        return {key: labels[key[0]] for key in rest}
    shared = 0
    for level in zip(
        *(parts[:-1] for parts in rest.values()), strict=False
    ):  # as long as the shortest
        if len(set(level)) > 1:
            break
        shared += 1
    return {key: "/".join(parts[shared:]) or None for key, parts in rest.items()}


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]


def _format_counts(splits: pa.DictionaryArray) -> str:
    return ", ".join(
        f"{split} {count}" for split, count in sorted(count_column_values(splits).items(), key=str)
    )


LEAVE_UNLABELLED, KEEP_UNLABELLED = "leave", "keep"
_MAX_SHOWN_NAMES = 3  # names in a note


def exclude_unlabelled_files(
    files: FileTable,
    roots: Sequence[InputRoot],
    *,
    split_from: str,
    class_from: str | re.Pattern[str],
    unlabelled: str,
) -> tuple[FileTable, FolderLayout, tuple[str, ...]]:
    """Returns (the files, what their folders say, notes) without those that stand beside the folders of classes and
    splits: word lists, indices and the like, that have no label.

    unlabelled: LEAVE them out, or KEEP them without a label.

    Raises:
        UsageError: as read_layout; they are as many as those in folders.
    """
    chosen, notes = files, list[str]()
    if class_from == NO_LAYOUT or unlabelled == KEEP_UNLABELLED:
        return chosen, read_layout(chosen, roots, split_from=split_from, class_from=class_from), ()
    if split_from in (AUTO_LAYOUT, FOLDER_LAYOUT) and _has_splits_inside(chosen):
        inside = np.fromiter(("/" in name for name in chosen.names()), np.bool_, len(chosen))
        outside = "stand outside the folders of the splits and have no split"
        notes += _note_excluded_files(chosen, ~inside, outside, "move them into one")
        chosen = chosen.filter(inside)
    layout = read_layout(chosen, roots, split_from=split_from, class_from=class_from)
    if layout.class_names and not (labelled := ~null_mask(layout.classes)).all():
        remedy = f"say {option('unlabelled', 'keep')} to have them without a label"
        where = "stand outside every class folder and have no label"
        if isinstance(class_from, re.Pattern):
            where = f"have no label by {option('label_regex', class_from.pattern)}"
        notes += _note_excluded_files(chosen, ~labelled, where, remedy)
        chosen = chosen.filter(labelled)
        layout = replace(
            layout,
            splits=layout.splits.filter(pa.array(labelled)),
            classes=layout.classes.filter(pa.array(labelled)),
            notes=tuple(note for note in layout.notes if not note.endswith("have no label")),
        )
    return chosen, layout, (*notes, *_note_uneven_classes(layout))


def _has_splits_inside(files: FileTable) -> bool:
    """Returns whether there are folders of splits and classes (`train/pos/`), and all other files lie in an INPUT."""
    inside, is_deep = 0, False
    for name in files.names():
        if "/" in name:
            top, *more = name.split("/")
            if top.lower() not in SPLIT_WORDS:
                return False
            inside, is_deep = inside + 1, is_deep or len(more) > 1
    return is_deep and inside < len(files)


def _note_excluded_files(
    files: FileTable, left: npt.NDArray[np.bool_], where: str, remedy: str
) -> list[str]:
    """left: [files] of which they are."""
    if not left.any():
        return []
    count, first = np.count_nonzero(left), np.flatnonzero(left)[:_MAX_SHOWN_NAMES].tolist()
    names = ", ".join(files[at].name for at in first) + (
        ", ..." if count > _MAX_SHOWN_NAMES else ""
    )
    what = f"{count:,} of {len(files):,} file(s) {where}: {names}"
    if 2 * count >= len(files):
        raise UsageError(
            f"{what}; move them away, {remedy}, or {option('class_from', 'none')} for no labels"
        )
    return [f"left out: {what} (to have them, {remedy})"]


def _note_uneven_classes(layout: FolderLayout) -> list[str]:
    """Returns a note on classes that some splits lack (`unsup` of reviews without a rating)."""
    by_class: defaultdict[str, set[str]] = defaultdict(set)
    names, words = layout.classes.dictionary.to_pylist(), layout.splits.dictionary.to_pylist()
    pairs = (
        layout.classes.indices.to_numpy().astype(np.int64) * len(words)
        + layout.splits.indices.to_numpy()
    )
    for name, split in (
        (names[pair // len(words)], words[pair % len(words)]) for pair in np.unique(pairs).tolist()
    ):
        if name is not None and split is not None:
            by_class[name].add(split)
    splits = set().union(*by_class.values())
    some = [
        f"{name!r} (in {', '.join(sorted(has))} only)"
        for name, has in sorted(by_class.items())
        if has != splits
    ]
    shown = ", ".join(some[:_MAX_SHOWN_NAMES]) + (", ..." if len(some) > _MAX_SHOWN_NAMES else "")
    return [f"classes that not every split has: {shown}"] if some else []


def reject_unknown_classes(
    files: FileTable, classes: pa.DictionaryArray, given: Sequence[str]
) -> tuple[npt.NDArray[np.bool_], list[Reject]]:
    """Returns (which files have a class that is given, or none at all; the others as rejects)."""
    known, words = frozenset(given), classes.dictionary.to_pylist()
    shown = ", ".join(map(repr, given[:20])) + (", ..." if len(given) > 20 else "")
    numbers = classes.indices.to_numpy()
    keep = np.array([name is None or name in known for name in words], np.bool_)[numbers]
    message = f"is none of the classes that the schema names: {shown}"
    rejects = [
        Reject(files[at].name, "", "class", f"class {words[numbers[at]]!r} {message}")
        for at in np.flatnonzero(~keep).tolist()
    ]
    return keep, rejects
