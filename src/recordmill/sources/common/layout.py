"""Splits and classes from the names of folders and files.

`read_layout` uses a naming convention, such as folders called train and test, only if all files
follow it. This module also compares the classes with a schema that the user has declared.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import Reject, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.schemas.splits import SPLIT_WORDS, detect_split
from recordmill.storage.archives import MEMBER_SEPARATOR, archive_name
from recordmill.storage.file_table import (
    FileTable,
    InputFile,
    count_column_values,
    encode_column,
    make_dictionary_column,
    null_column,
    null_mask,
)
from recordmill.storage.listing import InputRoot, Listing

AUTO_LAYOUT, FOLDER_LAYOUT, NAME_LAYOUT, NO_LAYOUT = "auto", "folders", "names", "none"

FolderKey = tuple[int, str]  # (index of the input in `roots`, folder relative to it)
# The folder name that Hive and Spark write for null.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class FolderLayout:
    """Splits and classes of the files in a listing.

    Attributes:
        splits: The split of each file. Null if it is unknown.
        classes: The class of each file. Null if it has none.
        class_names: All class names, sorted by their UTF-8 bytes. Empty if there are no classes.
        notes: Notes for the user.
        class_notes: The notes about classes. They are also part of `notes`.
    """

    splits: pa.DictionaryArray
    classes: pa.DictionaryArray
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    class_notes: tuple[str, ...] = ()

    def without_classes(self) -> FolderLayout:
        """Returns the layout without classes and without the notes about them.

        Use it for files that get their classes from another source.
        """
        return FolderLayout(
            splits=self.splits,
            classes=null_column(len(self.splits)),
            class_names=(),
            notes=tuple(note for note in self.notes if note not in self.class_notes),
        )


def read_layout(
    files: Sequence[InputFile],
    roots: Sequence[InputRoot],
    *,
    split_from: str = AUTO_LAYOUT,
    class_from: str | re.Pattern[str] = AUTO_LAYOUT,
) -> FolderLayout:
    """Determines the split and the class of each file from its name and folder.

    Args:
        files: The files.
        roots: The inputs that the user has named. `InputFile.root` is an index into them.
        split_from: `folders`, `names` (of files), `none` or `auto`. `auto` tries folders, names of
            the inputs and names of files, in this order. The first one that determines the split of
            every file is used.
        class_from: `folders`, `none`, `auto` or a pattern from `resolve_class_rule`. `auto` uses
            folders only if there are at least two classes, because a model can't learn from a
            single one.

    Raises:
        UsageError: With `auto`, some files are in folders called like splits, such as `train` or
            `test`, and others are outside of them. It is also raised if `folders` or `names` does
            not determine the split of a file, or if the pattern matches no file name.
    """
    table = FileTable.from_files(files)
    folders = _FileFolders.from_files(table)
    remaining_components: dict[FolderKey, tuple[str, ...]] = {
        key: tuple(key[1].split("/")) if key[1] else () for key in folders.keys
    }
    archive_by_folder = _find_archive_names(folders.keys, roots)
    splits, notes = _assign_splits(table, folders, remaining_components, roots, split_from)
    classes = null_column(len(table))
    class_names: tuple[str, ...] = ()
    class_notes: list[str] = []
    if isinstance(class_from, re.Pattern):
        label_group = class_from.groupindex.get("label", 1)
        matches = map(class_from.search, table.names())
        classes = encode_column((match and match[label_group] for match in matches), len(table))
        class_names = tuple(
            sorted(name for name in classes.dictionary.to_pylist() if name is not None)
        )
        if not class_names:
            raise UsageError(
                "{label_regex}: no file name matches; the first one is {table}",
                label_regex=option("label_regex", class_from.pattern),
                table=table[0].name,
            )
    elif class_from != NO_LAYOUT:
        # The remaining components no longer include the split folders.
        classes_by_folder = _assign_classes(remaining_components, archive_by_folder, roots)
        class_names = tuple(
            sorted({name for name in classes_by_folder.values() if name is not None})
        )
        # A single class has nothing that a model could learn.
        if len(class_names) == 1 and class_from == AUTO_LAYOUT:
            class_notes.append(
                f"all files are in one folder, {class_names[0]!r}, so they get no class labels"
            )
            class_names = ()
        if class_names:
            classes = folders.to_file_values(classes_by_folder)
            if num_unlabelled := int(np.count_nonzero(null_mask(classes))):
                class_notes.append(
                    f"{num_unlabelled} file(s) outside every class folder have no label"
                )
    return FolderLayout(
        splits=splits,
        classes=classes,
        class_names=class_names,
        notes=(*notes, *class_notes),
        class_notes=tuple(class_notes),
    )


def drop_sample_submissions(listing: Listing) -> Listing:
    """Returns the listing without sample submissions, the templates for results of competitions.

    Such a file, for example Kaggle's `sample_submission.csv`, contains the ids of the test data and
    no records. It is removed only if the user has not named the file itself, and if the name or
    folder of every other file contains a split.
    """
    is_submission = np.fromiter(
        ("submission" in _stem(name).lower() for name in listing.files.names()),
        np.bool_,
        len(listing.files),
    )
    is_submission &= ~listing.explicit_mask(is_submission)
    if not is_submission.any() or is_submission.all():
        return listing
    files = listing.files.filter(~is_submission)
    if not all(
        detect_split(_stem(name)) or _find_split_folder(name.split("/")[:-1])
        for name in files.names()
    ):
        return listing
    names = list(listing.files.filter(is_submission).names())
    shown = ", ".join(names[:_MAX_SHOWN_NAMES]) + ", ..." * (len(names) > _MAX_SHOWN_NAMES)
    note = (
        f"left out {len(names)} file(s) that are templates for submissions: {shown}"
        " (to read them, name the files)"
    )
    return replace(listing, files=files, notes=(*listing.notes, note))


def resolve_class_rule(class_from: str, label_regex: str | None) -> str | re.Pattern[str]:
    """Returns the rule that determines the class of a file, for `read_layout`.

    Args:
        class_from: The option of this name.
        label_regex: A regular expression to be searched in file names, or None. Its group `label`,
            or else its first group, is the class.

    Returns:
        The compiled `label_regex`. `class_from` if there is no regular expression.

    Raises:
        UsageError: The regular expression is invalid or has no group.
    """
    if label_regex is None:
        return class_from
    try:
        pattern = re.compile(label_regex)
    except re.error as error:
        raise UsageError(
            "{label_regex}: not a regular expression: {error}",
            label_regex=option("label_regex", label_regex),
            error=error,
        ) from None
    if not pattern.groups:
        raise UsageError(
            "{label_regex}: it needs a group around the label: (...)",
            label_regex=option("label_regex", label_regex),
        )
    return pattern


def read_partitions(files: FileTable) -> dict[str, pa.DictionaryArray]:
    """Reads the values of folders called `NAME=VALUE`, as Hive and Spark write tables.

    Returns:
        The value of each file, by partition name. It is null if the file is in no folder of that
        name, or if the value is Hive's name for null.

    Raises:
        UsageError: The path of a file has two folders with the same partition name.
    """
    folders = _FileFolders.from_files(files)
    values_by_name: dict[str, dict[FolderKey, str | None]] = {}
    for key in folders.keys:
        for name, equals, value in (component.partition("=") for component in key[1].split("/")):
            if name and equals:
                values = values_by_name.setdefault(unquote(name), {})
                if key in values:
                    raise UsageError(
                        f"{key[1]}: two of these folders are called {name}=...; rename one"
                    )
                values[key] = None if value == _HIVE_NULL else unquote(value)
    return {
        name: folders.to_file_values({key: values.get(key) for key in folders.keys})
        for name, values in values_by_name.items()
    }


def note_unused_partitions(files: FileTable, columns: Sequence[str]) -> tuple[str, ...]:
    """Returns a note on `NAME=VALUE` folders that do not become columns.

    Args:
        files: All files.
        columns: The names of the columns that are read.
    """
    unused_names = [name for name in read_partitions(files) if name not in columns]
    return (
        (
            (
                f"folders named {', '.join((f'{name}=...' for name in unused_names))} do "
                "not become columns"
            ),
        )
        if unused_names
        else ()
    )


@dataclass(frozen=True)
class _FileFolders:
    """The folder of each file.

    Attributes:
        folder_ids: [files] indices into `keys`.
        keys: The distinct folders.
    """

    folder_ids: npt.NDArray[np.uint32]
    keys: tuple[FolderKey, ...]

    @classmethod
    def from_files(cls, files: FileTable) -> _FileFolders:
        ids_by_key: dict[FolderKey, int] = {}
        folder_keys = ((root, name.rpartition("/")[0]) for root, name in files.roots_and_names())
        folder_ids = np.fromiter(
            (ids_by_key.setdefault(key, len(ids_by_key)) for key in folder_keys),
            np.uint32,
            len(files),
        )
        return cls(folder_ids, tuple(ids_by_key))

    def to_file_values(
        self, values_by_folder: Mapping[FolderKey, str | None]
    ) -> pa.DictionaryArray:
        """Returns a value for each file, from the value of its folder."""
        value_ids: dict[str | None, int] = {}
        folder_values = [
            value_ids.setdefault(values_by_folder[key], len(value_ids)) for key in self.keys
        ]
        return make_dictionary_column(
            np.array(folder_values, np.min_scalar_type(len(value_ids)))[self.folder_ids],
            list(value_ids),
        )


def _assign_splits(
    files: FileTable,
    folders: _FileFolders,
    remaining_components: dict[FolderKey, tuple[str, ...]],
    roots: Sequence[InputRoot],
    split_from: str,
) -> tuple[pa.DictionaryArray, list[str]]:
    """Determines the split of each file.

    If folders determine the splits, the name of the split folder is removed from the paths in
    `remaining_components`. The other folder names can then determine the classes.

    Args:
        files: All files.
        folders: The folder of each file.
        remaining_components: The path components of each folder. Changed in place.
        roots: The inputs that the user has named.
        split_from: The rule that determines the split, as in `read_layout`.

    Returns:
        (split of each file, notes). All splits are null if they can't be determined.

    Raises:
        UsageError: Some files are inside and others outside of split folders, or the rule does not
            determine the split of a file.
    """
    no_splits = null_column(len(files))
    if split_from == NO_LAYOUT or not files:
        return no_splits, []
    notes: list[str] = []
    if split_from in (AUTO_LAYOUT, FOLDER_LAYOUT):
        splits_by_folder = {
            key: _find_split_folder(components) for key, components in remaining_components.items()
        }
        single_split = split_from == AUTO_LAYOUT and _find_single_split_word(
            splits_by_folder, remaining_components
        )
        if single_split:
            notes.append(_single_split_note("folder", single_split, FOLDER_LAYOUT))
        # Only if every folder names a split, the folders determine the splits.
        elif all(splits_by_folder.values()):
            split_names: dict[FolderKey, str | None] = {}
            for key, level_and_split in splits_by_folder.items():
                assert level_and_split is not None
                level, split_names[key] = level_and_split
                components = remaining_components[key]
                remaining_components[key] = components[:level] + components[level + 1 :]
            splits = folders.to_file_values(split_names)
            return splits, [f"splits by folder: {_format_counts(splits)}"]
        _check_no_partial_splits(
            files,
            folders,
            splits_by_folder,
            remaining_components,
            is_required=split_from == FOLDER_LAYOUT,
        )
    if split_from == AUTO_LAYOUT and (root_splits := _splits_by_root(roots)):
        return folders.to_file_values({key: root_splits[key[0]] for key in folders.keys}), [
            "splits by the INPUTs' own names"
        ]
    name_splits = encode_column((detect_split(_stem(name)) for name in files.names()), len(files))
    is_missing = null_mask(name_splits)
    if not is_missing.any():
        # If all names contain the same split, it is used only if the names consist of nothing else.
        (split, *other_splits) = count_column_values(name_splits)
        if (
            split_from == AUTO_LAYOUT
            and not other_splits
            and any(_stem(name).lower() not in SPLIT_WORDS for name in files.names())
        ):
            return no_splits, [*notes, _single_split_note("file", split, NAME_LAYOUT)]
        return name_splits, [f"splits by file name: {_format_counts(name_splits)}"]
    if split_from == NAME_LAYOUT:
        raise UsageError(
            (
                "{files}: the name of this file contains no split; rename it, or leave "
                "out {split_from}"
            ),
            files=files[int(np.argmax(is_missing))].name,
            split_from=option("split_from", "names"),
        )
    if num_with_split := int(np.count_nonzero(~is_missing)):
        notes.append(
            f"no splits by file name, because only {num_with_split} of "
            f"{len(name_splits)} names contain one, and "
            f"{files[int(np.argmax(is_missing))].name} does not; to use them, pass "
            "the other files only"
        )
    return no_splits, notes


def _single_split_note(source: str, split: str | None, option_value: str) -> str:
    return Message(
        "all {file} names contain {split}. With only one split the names are ignored, and all "
        "records go to the default split. To use the names anyway: {split_from}",
        file=source,
        split=repr(split),
        split_from=option("split_from", option_value),
    )


def _find_single_split_word(
    splits_by_folder: Mapping[FolderKey, tuple[int, str] | None],
    remaining_components: Mapping[FolderKey, tuple[str, ...]],
) -> str:
    """Returns the split if the paths of all folders name the same one.

    A word that all paths share does not divide the data. The result is "" if the folders name
    several splits or some name none. It is also "" if a folder is called exactly like the split.
    """
    # Some folders do not name a split, so there is no common word.
    if None in splits_by_folder.values():
        return ""
    folder_splits = {
        key: level_and_split
        for key, level_and_split in splits_by_folder.items()
        if level_and_split is not None
    }
    splits = {split for _, split in folder_splits.values()}
    is_split_name = any(
        remaining_components[key][index].lower() in SPLIT_WORDS
        for key, (index, _) in folder_splits.items()
    )
    return splits.pop() if len(splits) == 1 and not is_split_name else ""


def _find_split_folder(components: Sequence[str]) -> tuple[int, str] | None:
    """Finds the outermost folder that names a split.

    A folder with exactly the name of a split takes precedence over one that contains the name as a
    word.

    Returns:
        (index of the component, split), or None.
    """
    # All exact names are tried before words in names.
    for detect in (lambda component: SPLIT_WORDS.get(component.lower()), detect_split):
        for index, component in enumerate(components):
            if (split := detect(component)) is not None:
                return index, split
    return None


def _check_no_partial_splits(
    files: FileTable,
    folders: _FileFolders,
    splits_by_folder: Mapping[FolderKey, tuple[int, str] | None],
    remaining_components: Mapping[FolderKey, tuple[str, ...]],
    *,
    is_required: bool,
) -> None:
    """Raises UsageError if only some files are in folders called like splits.

    Args:
        files: All files.
        folders: The folder of each file.
        splits_by_folder: (index of the component, split) of each folder, or None if its path names
            no split.
        remaining_components: The path components of each folder.
        is_required: Whether it is also an error if no folder is called like a split.
    """
    split_names = sorted(
        {
            remaining_components[key][folder_split[0]]
            for key, folder_split in splits_by_folder.items()
            if folder_split is not None
            and remaining_components[key][folder_split[0]].lower() in SPLIT_WORDS
        }
    )
    if not split_names and not is_required:
        return
    outside = np.flatnonzero(
        np.array([splits_by_folder[key] is None for key in folders.keys])[folders.folder_ids]
    )
    description = (
        f"folders name splits ({', '.join(split_names)})"
        if split_names
        else "no folder names a split"
    )
    raise UsageError(
        "{description}, but {outside_count} file(s) are outside them, such as "
        "{files}: move them, pass only the split folders as INPUT, or use "
        "{split_from} to ignore the names of these folders",
        description=description,
        outside_count=len(outside),
        files=files[int(outside[0])].name,
        split_from=option("split_from", "none"),
    )


def _splits_by_root(roots: Sequence[InputRoot]) -> list[str] | None:
    """Returns the split of each input, if the names of all inputs are splits.

    Returns None if an input has another name, or if they name fewer than two different splits.
    """
    root_splits = [
        detect_split(_stem(root.label))
        # The name of an archive may contain other words. A folder must be called exactly like the
        # split.
        if root.path.endswith(MEMBER_SEPARATOR[0])
        else SPLIT_WORDS.get(root.label.lower())
        for root in roots
    ]
    known_splits = [split for split in root_splits if split is not None]
    return (
        known_splits
        if len(known_splits) == len(root_splits) and len(set(known_splits)) > 1
        else None
    )


def _find_archive_names(
    keys: Iterable[FolderKey], roots: Sequence[InputRoot]
) -> dict[FolderKey, str]:
    """Returns the name of the archive that contains each folder, by folder.

    The name is a component of the folder's path. Folders outside of archives are not in the result.
    """
    names: dict[FolderKey, str] = {}
    for root, folder in keys:
        path = ""
        for component in folder.split("/") if roots[root].archives else ():
            path = f"{path}/{component}" if path else component
            if path in roots[root].archives:
                names[root, folder] = component
                break
    return names


def _assign_classes(
    remaining_components: Mapping[FolderKey, tuple[str, ...]],
    archive_by_folder: Mapping[FolderKey, str],
    roots: Sequence[InputRoot],
) -> dict[FolderKey, str | None]:
    """Returns the class of each folder.

    The class is the path without the folders that all files share. For example, if there are files
    in data/cats/a and in data/cats/b, the classes are a and b. The class is None if nothing is left
    of the path. The name of an archive is not part of the path, so that an archive in several parts
    has the same classes as its folder.

    If the user has named several folders as inputs and all files are directly in them, the names of
    these inputs are the classes. The names of archives are classes in the same way.

    Args:
        remaining_components: The path components of each folder, without the components of splits.
        archive_by_folder: The result of `_find_archive_names`.
        roots: The inputs.
    """
    labels = {key: roots[key[0]].label for key in remaining_components}
    inner_components = dict(remaining_components)
    for key, archive in archive_by_folder.items():
        # The archive is no longer among the components if it names a split.
        if archive in (components := remaining_components[key]):
            index = components.index(archive)
            inner_components[key] = components[:index] + components[index + 1 :]
            labels[key] = archive_name(archive.removesuffix(MEMBER_SEPARATOR[0]))
    remaining_components = inner_components
    if (
        len(set(labels.values())) > 1
        and all(labels.values())
        and not any(remaining_components.values())
        and _splits_by_root(roots) is None
    ):
        return dict(labels)
    # Folders that all files share, such as `data/images/`, are not part of the class. `zip` stops
    # at the shortest path.
    num_shared = 0
    for level in zip(
        *(components[:-1] for components in remaining_components.values()), strict=False
    ):
        if len(set(level)) > 1:
            break
        num_shared += 1
    return {
        key: "/".join(components[num_shared:]) or None
        for key, components in remaining_components.items()
    }


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]


def _format_counts(splits: pa.DictionaryArray) -> str:
    return ", ".join(
        f"{split} {count}" for split, count in sorted(count_column_values(splits).items(), key=str)
    )


LEAVE_UNLABELLED, KEEP_UNLABELLED = "leave", "keep"
_MAX_SHOWN_NAMES = 3  # in one note


def exclude_unlabelled_files(
    files: FileTable,
    roots: Sequence[InputRoot],
    *,
    split_from: str,
    class_from: str | re.Pattern[str],
    unlabelled: str,
) -> tuple[FileTable, FolderLayout, tuple[str, ...]]:
    """Removes files outside of the folders of classes and splits.

    Such files have no label. They often are word lists, indices and the like.

    Args:
        files: The files.
        roots: The inputs that the user has named.
        split_from: The rule that determines the split, as in `read_layout`.
        class_from: The rule that determines the class, as in `read_layout`.
        unlabelled: LEAVE_UNLABELLED removes the files. KEEP_UNLABELLED keeps them without a label.

    Returns:
        (remaining files, their layout, notes).

    Raises:
        UsageError: `read_layout` refuses the remaining files, or at least half of the files would
            be removed.
    """
    kept_files, notes = files, list[str]()
    if class_from == NO_LAYOUT or unlabelled == KEEP_UNLABELLED:
        return (
            kept_files,
            read_layout(kept_files, roots, split_from=split_from, class_from=class_from),
            (),
        )
    # Files outside of the split folders would be an error in `read_layout`.
    if split_from in (AUTO_LAYOUT, FOLDER_LAYOUT) and _has_splits_inside(kept_files):
        is_inside = np.fromiter(
            ("/" in name for name in kept_files.names()), np.bool_, len(kept_files)
        )
        outside_reason = "are outside the folders of the splits and have no split"
        notes += _note_excluded_files(kept_files, ~is_inside, outside_reason, "move them into one")
        kept_files = kept_files.filter(is_inside)
    layout = read_layout(kept_files, roots, split_from=split_from, class_from=class_from)
    if layout.class_names and not (is_labelled := ~null_mask(layout.classes)).all():
        remedy = Message(
            "use {unlabelled} to read them without a label", unlabelled=option("unlabelled", "keep")
        )
        reason = "are outside every class folder and have no label"
        if isinstance(class_from, re.Pattern):
            reason = Message(
                "have no label by {label_regex}",
                label_regex=option("label_regex", class_from.pattern),
            )
        notes += _note_excluded_files(kept_files, ~is_labelled, reason, remedy)
        kept_files = kept_files.filter(is_labelled)
        layout = replace(
            layout,
            splits=layout.splits.filter(pa.array(is_labelled)),
            classes=layout.classes.filter(pa.array(is_labelled)),
            # The note on excluded files replaces this one.
            notes=tuple(note for note in layout.notes if not note.endswith("have no label")),
        )
    return kept_files, layout, (*notes, *_note_uneven_classes(layout))


def _has_splits_inside(files: FileTable) -> bool:
    """Returns whether the inputs contain split folders, next to files outside of them.

    All folders at the top must be called like splits, and at least one of them must have
    subfolders. Some files must not be in any folder.
    """
    num_inside, is_deep = 0, False
    for name in files.names():
        if "/" in name:
            top, *subfolders = name.split("/")
            if top.lower() not in SPLIT_WORDS:
                return False
            num_inside, is_deep = num_inside + 1, is_deep or len(subfolders) > 1
    return is_deep and num_inside < len(files)


def _note_excluded_files(
    files: FileTable, is_excluded: npt.NDArray[np.bool_], reason: str, remedy: str
) -> list[str]:
    """Returns a note on the files that are removed.

    The list is empty if no file is removed.

    Args:
        files: All files.
        is_excluded: [files] Whether a file is removed.
        reason: Why the files are removed, as the end of a sentence about them.
        remedy: How the user can keep them.

    Raises:
        UsageError: At least half of the files would be removed.
    """
    if not is_excluded.any():
        return []
    count = np.count_nonzero(is_excluded)
    first_indices = np.flatnonzero(is_excluded)[:_MAX_SHOWN_NAMES].tolist()
    names = ", ".join(files[index].name for index in first_indices) + (
        ", ..." if count > _MAX_SHOWN_NAMES else ""
    )
    summary = Message(
        "{count} of {files_count} file(s) {reason}: {names}",
        count=f"{count:,}",
        files_count=f"{len(files):,}",
        reason=reason,
        names=names,
    )
    if 2 * count >= len(files):
        raise UsageError(
            ("{summary}; move them away, {remedy}, or use {class_from} to read all without labels"),
            summary=summary,
            remedy=remedy,
            class_from=option("class_from", "none"),
        )
    return [Message("left out: {summary} (to read them, {remedy})", summary=summary, remedy=remedy)]


def _note_uneven_classes(layout: FolderLayout) -> list[str]:
    """Returns a note on classes that occur in some splits only, or [].

    An example is a class `unsup` that only the training split has.
    """
    splits_by_class: defaultdict[str, set[str]] = defaultdict(set)
    class_names = layout.classes.dictionary.to_pylist()
    split_names = layout.splits.dictionary.to_pylist()
    # One number for each combination, so that `np.unique` finds the distinct ones.
    class_split_pairs = (
        layout.classes.indices.to_numpy().astype(np.int64) * len(split_names)
        + layout.splits.indices.to_numpy()
    )
    for name, split in (
        (class_names[pair // len(split_names)], split_names[pair % len(split_names)])
        for pair in np.unique(class_split_pairs).tolist()
    ):
        if name is not None and split is not None:
            splits_by_class[name].add(split)
    splits = set().union(*splits_by_class.values())
    partial_classes = [
        f"{name!r} (in {', '.join(sorted(class_splits))} only)"
        for name, class_splits in sorted(splits_by_class.items())
        if class_splits != splits
    ]
    class_list = ", ".join(partial_classes[:_MAX_SHOWN_NAMES]) + (
        ", ..." if len(partial_classes) > _MAX_SHOWN_NAMES else ""
    )
    return [f"classes that not every split has: {class_list}"] if partial_classes else []


def reject_unknown_classes(
    files: FileTable, classes: pa.DictionaryArray, class_names: Sequence[str]
) -> tuple[npt.NDArray[np.bool_], list[Reject]]:
    """Finds files with a class that the schema does not contain.

    Args:
        files: All files.
        classes: The class of each file, or null.
        class_names: The classes of the schema.

    Returns:
        (mask of the files to keep, a reject for each other file). Files with a known class or
        without a class are kept.
    """
    known_names, file_class_names = frozenset(class_names), classes.dictionary.to_pylist()
    class_list = ", ".join(map(repr, class_names[:20])) + (", ..." if len(class_names) > 20 else "")
    name_ids = classes.indices.to_numpy()
    is_kept = np.array(
        [name is None or name in known_names for name in file_class_names], np.bool_
    )[name_ids]
    message = f"is not one of the classes of the schema: {class_list}"
    rejects = [
        Reject(files[row].name, "", "class", f"class {file_class_names[name_ids[row]]!r} {message}")
        for row in np.flatnonzero(~is_kept).tolist()
    ]
    return is_kept, rejects
