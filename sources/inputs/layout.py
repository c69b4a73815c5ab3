"""What folders and file names say about the files in them:
a `Layout` of splits and class names, applied only where it holds for all.

Which name says which split is a matter of `schemas.splits`.

A file's class is the folders between its INPUT and itself, without the one that names its split and without the leading
folders that all files share, joined by `/` (`dogs/terrier`). A file with no such folder has no class. Where several
INPUT folders are given and no file has a folder of its own, the INPUTs' own names are the classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recordmill.base.errors import UsageError
from recordmill.schemas.splits import SPLIT_WORDS, split_of
from recordmill.storage.listing import InputFile, Root

_ONE_SPLIT = (
    "all {what} names hold a word for {split!r}, and one split says nothing: all records are in the default split "
    "(--split-from {ask} takes the word)"
)
AUTO, FOLDERS, NAMES, NONE = "auto", "folders", "names", "none"

Key = tuple[int, str]  # (root, folder relative to it)


@dataclass(frozen=True)
class Layout:
    """splits, classes: per file, None where nothing says it. class_names: in the order of their UTF-8 bytes; empty
    where there are no classes. class_notes: those of the notes that speak of classes.
    """

    splits: tuple[str | None, ...]
    classes: tuple[str | None, ...]
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    class_notes: tuple[str, ...] = ()

    def without_classes(self) -> Layout:
        """The same where the classes come from elsewhere:
        what is noted about folders as classes is then beside the point.
        """
        return Layout(
            self.splits,
            (None,) * len(self.splits),
            (),
            tuple(note for note in self.notes if note not in self.class_notes),
        )


def read_layout(
    files: Sequence[InputFile], roots: Sequence[Root], *, split_from: str = AUTO, class_from: str = AUTO
) -> Layout:
    """What the names of these files say.

    split_from: `folders`, `names` (of files), `none`, or `auto`: the first of folders, INPUTs and file names that says
    it of every file. class_from: `folders`, `none`, or `auto`: folders if they say at least two classes (one says
    nothing that a model could learn).

    Raises:
        UsageError: with `auto`, some folders are called `train`, `test` or the like and some files lie outside all of
            those, so that either reading could mix test data into training; with `folders` or `names`, a file whose
            split they don't say.
    """
    keys = [(file.root, file.name.rpartition("/")[0]) for file in files]
    rest: dict[Key, tuple[str, ...]] = {key: tuple(key[1].split("/")) if key[1] else () for key in set(keys)}
    splits, notes = _splits(files, keys, rest, roots, split_from)
    classes: tuple[str | None, ...] = (None,) * len(files)
    names: tuple[str, ...] = ()
    of_classes: list[str] = []
    if class_from != NONE:
        by_key = _classes(rest, roots)
        names = tuple(sorted({name for name in by_key.values() if name is not None}))
        if len(names) == 1 and class_from == AUTO:
            of_classes.append(f"all files in folders stand under {names[0]!r}: one folder says no classes")
            names = ()
        if names:
            classes = tuple(by_key[key] for key in keys)
            if bare := classes.count(None):
                of_classes.append(f"{bare} file(s) outside every class folder have no label")
    return Layout(splits, classes, names, (*notes, *of_classes), tuple(of_classes))


def with_splits(files: Sequence[InputFile], splits: Sequence[str | None]) -> list[InputFile]:
    """The files with these splits, one per file."""
    pairs = zip(files, splits, strict=True)
    return [
        file if split == file.split else InputFile(file.root, file.name, file.path, file.stat, split)
        for file, split in pairs
    ]


def _splits(
    files: Sequence[InputFile],
    keys: Sequence[Key],
    rest: dict[Key, tuple[str, ...]],
    roots: Sequence[Root],
    split_from: str,
) -> tuple[tuple[str | None, ...], list[str]]:
    """The split per file; takes the folder that says it out of rest."""
    nothing: tuple[str | None, ...] = (None,) * len(files)
    if split_from == NONE or not files:
        return nothing, []
    notes: list[str] = []
    if split_from in (AUTO, FOLDERS):
        by_folder = {key: _in_folders(parts) for key, parts in rest.items()}
        alone = split_from == AUTO and _one_by_words(by_folder, rest)
        if alone:
            notes.append(_ONE_SPLIT.format(what="folder", split=alone, ask=FOLDERS))
        elif all(by_folder.values()):
            for key, (at, _) in ((key, found) for key, found in by_folder.items() if found is not None):
                rest[key] = rest[key][:at] + rest[key][at + 1 :]
            return tuple(found[1] if (found := by_folder[key]) else None for key in keys), [
                f"splits by folder: {_tally(keys, by_folder)}"
            ]
        _check_partial(files, keys, by_folder, rest, demanded=split_from == FOLDERS)
    if split_from == AUTO and (by_root := _by_root(roots)):
        return tuple(by_root[file.root] for file in files), ["splits by the INPUTs' own names"]
    by_name = tuple(split_of(_stem(file.name)) for file in files)
    if None not in by_name:
        (one, *more) = {split for split in by_name if split is not None}
        if split_from == AUTO and not more and any(_stem(file.name).lower() not in SPLIT_WORDS for file in files):
            return nothing, [*notes, _ONE_SPLIT.format(what="file", split=one, ask=NAMES)]
        return by_name, [f"splits by file name: {_counts(by_name)}"]
    if split_from == NAMES:
        raise UsageError(
            f"{files[by_name.index(None)].name}: this file's name says no split; rename it, or leave "
            "--split-from names out"
        )
    if some := len(by_name) - by_name.count(None):
        notes.append(f"no splits by file name: only {some} of {len(by_name)} names say one")
    return nothing, notes


def _one_by_words(by_folder: Mapping[Key, tuple[int, str] | None], rest: Mapping[Key, tuple[str, ...]]) -> str:
    """The split, if words in the names of all folders say the same one and none is called so; else empty."""
    if None in by_folder.values():
        return ""
    found = {key: at_split for key, at_split in by_folder.items() if at_split is not None}
    splits = {split for _, split in found.values()}
    plain = any(rest[key][at].lower() in SPLIT_WORDS for key, (at, _) in found.items())
    return splits.pop() if len(splits) == 1 and not plain else ""


def _in_folders(parts: Sequence[str]) -> tuple[int, str] | None:
    """Which folder, outermost first, says which split; whole names count before words in names."""
    for says in (lambda part: SPLIT_WORDS.get(part.lower()), split_of):
        for at, part in enumerate(parts):
            if (found := says(part)) is not None:
                return at, found
    return None


def _check_partial(
    files: Sequence[InputFile],
    keys: Sequence[Key],
    by_folder: Mapping[Key, tuple[int, str] | None],
    rest: Mapping[Key, tuple[str, ...]],
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
    outside = [file.name for file, key in zip(files, keys, strict=True) if by_folder[key] is None]
    said = f"folders name splits ({', '.join(plain)})" if plain else "no folder names a split"
    raise UsageError(
        f"{said}, but {len(outside)} file(s) lie outside them, such as {outside[0]}: move them, give the "
        "split folders alone as INPUT, "
        "or say --split-from none to take such folders as any other"
    )


def _by_root(roots: Sequence[Root]) -> list[str] | None:
    """The split of each INPUT, if all are folders called like splits, of at least two kinds."""
    found = [SPLIT_WORDS.get(root.label.lower()) for root in roots]
    known = [split for split in found if split is not None]
    return known if len(known) == len(found) and len(set(known)) > 1 else None


def _classes(rest: Mapping[Key, tuple[str, ...]], roots: Sequence[Root]) -> dict[Key, str | None]:
    labels = [root.label for root in roots]
    if len(set(labels)) > 1 and all(labels) and not any(rest.values()) and _by_root(roots) is None:
        return {key: labels[key[0]] for key in rest}
    shared = 0
    for level in zip(*(parts[:-1] for parts in rest.values()), strict=False):  # as long as the shortest
        if len(set(level)) > 1:
            break
        shared += 1
    return {key: "/".join(parts[shared:]) or None for key, parts in rest.items()}


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]


def _tally(keys: Sequence[Key], by_folder: Mapping[Key, tuple[int, str] | None]) -> str:
    return _counts([found[1] for key in keys if (found := by_folder[key]) is not None])


def _counts(splits: Sequence[str | None]) -> str:
    return ", ".join(f"{split} {count}" for split, count in sorted(Counter(splits).items(), key=str))
