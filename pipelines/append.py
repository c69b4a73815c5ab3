"""Options and inputs of an append to a data set.

The manifest has the options of the data set. `inherit_options` uses them, and refuses options that
contradict them. `plan_appended` plans the new inputs: it leaves out the ones that the data set has,
and reads the others with its schema.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.options.build import BuildInputs, BuildShards
from recordmill.options.calls import CALLS
from recordmill.pipelines.build_options import (
    AppendBase,
    BuildOptions,
    make_options,
    to_json_value,
)
from recordmill.preprocessing.declaration import read_declaration
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import (
    INPUTS_NAME,
    Manifest,
    list_generations,
    load_newest_manifest,
)
from recordmill.sources.arrow.memory import MemorySource
from recordmill.sources.common.contract import Source
from recordmill.sources.parser.source import PARSER_KIND, ParsedSource
from recordmill.sources.registry import KIND_NAMES
from recordmill.sources.values.appended_schema import AppendRules, extend_schema
from recordmill.sources.values.schema_unifier import apply_dtypes
from recordmill.storage.file_table import FileTable
from recordmill.storage.files import read_blocks
from recordmill.storage.folders import join

# Options of the manifest that are keywords of a build with the same name and value.
_INHERITED_OPTIONS = (
    "name",
    "compression",
    "seed",
    "shuffle",
    "key",
    "split_by",
    "stratify",
    "split_column",
    "split_at",
    "split_seed",
    "label",
)
# Options of a kind that name files next to the inputs. New inputs have their own.
_PER_INPUT_OPTIONS = ("labels", "boxes")
# Concurrent reads of lists of inputs. Each thread mostly waits for a disk or a store.
_CONCURRENT_LISTS = 16
_MAX_SHOWN_NAMES = 3
# 1 MiB: smaller shards cost more in files than they are worth.
_MIN_SHARD_BYTES = 1 << 20


class NothingToAppend(Exception):
    """The data set has all inputs already.

    Args:
        note: A message for the user.
        manifest: The manifest of the data set.
    """

    def __init__(self, note: str, manifest: Manifest) -> None:
        super().__init__(note)
        self.note, self.manifest = note, manifest


def inherit_options(out: str, settings: BuildOptions, *, reads_files: bool) -> BuildOptions:
    """Returns the options of an append.

    Most of them come from the data set in `out`.

    Args:
        out: The output folder. Without a data set in it, and without `append`, the options are
            returned unchanged.
        settings: The options of the user.
        reads_files: Whether the inputs are files, and not data in memory.

    Raises:
        UsageError: An option contradicts the data set.
        DataError: The manifest is invalid.
    """
    if not settings.records.append or not list_generations(out):
        return settings
    number, manifest = load_newest_manifest(out)
    _check_same_options(out, settings, manifest)
    saved = _saved_keywords(settings, manifest, reads_files)
    # None means that the user has not set the option.
    given = {name: value for name, value in settings.values.given.items() if value is not None}
    user_options = {**saved, **given}
    dtypes = {**manifest.options.get("dtypes", {}), **(settings.records.dtypes or {})}
    if dtypes:
        user_options["dtypes"] = dtypes
    if user_options.get("stratify") and user_options.get("split_by"):
        raise UsageError(
            "{out} was built with {stratify} and {split_by}, and an append can't keep the records of "
            "a group in one split then; build all inputs again",
            out=out,
            stratify=option("stratify", user_options["stratify"]),
            split_by=option("split_by", user_options["split_by"]),
        )
    # A number of shards is for all records. An append, which is often small, makes shards of the
    # size that they have.
    if user_options.pop("num_shards", None) or manifest.options.get("num_shards"):
        user_options["shard_size"] = _mean_shard_bytes(manifest)
    inherited = make_options(out, **user_options)
    return replace(
        inherited,
        transform=None,
        transform_from=out if manifest.transform else None,
        base=AppendBase(out, number, manifest),
    )


def _mean_shard_bytes(manifest: Manifest) -> int:
    sizes = [shard.framed_bytes for shards in manifest.parts[0].splits.values() for shard in shards]
    return max(sum(sizes) // max(len(sizes), 1), _MIN_SHARD_BYTES)


def _saved_keywords(
    settings: BuildOptions, manifest: Manifest, reads_files: bool
) -> dict[str, Any]:
    """Returns the keywords of a build that the manifest contains."""
    options = manifest.options
    saved = {name: options.get(name) for name in _INHERITED_OPTIONS}
    saved |= {"splits": options.get("splits") or None, "shard_size": options.get("shard_bytes")}
    kind = manifest.parts[-1].kind
    if reads_files and settings.parser is None:
        if kind == PARSER_KIND and settings.values[BuildInputs].kind is None:
            raise UsageError(
                "the data set was built with {parser}; give it again, or the kind of the inputs",
                parser=option("parser", options.get("parser", ["a function"])[0]),
            )
        if settings.values[BuildInputs].kind is None and kind in KIND_NAMES:
            saved["kind"] = kind
        if kind == "text":
            # The number of files must not change what a record is. Documents name their source.
            is_document = "source" in stored_schema(manifest)
            saved["mode"] = "documents" if is_document else "lines"
        saved |= _saved_kind_options(options, settings.values[BuildInputs].kind or kind)
    return {name: value for name, value in saved.items() if value is not None}


def _saved_kind_options(options: Mapping[str, Any], kind: str) -> dict[str, Any]:
    declared = CALLS["build"].options
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (options.get("kind_options") or {}).items()
        if name in declared and name not in _PER_INPUT_OPTIONS and kind in declared[name].kinds
    }


def _check_same_options(out: str, settings: BuildOptions, manifest: Manifest) -> None:
    """Raises UsageError if an option of the user differs from that of the data set."""
    saved = manifest.options
    current: dict[str, Any] = {
        "name": settings.name,
        "compression": settings.values[BuildShards].compression,
        "label": settings.records.label,
        "num_shards": settings.shards.num_shards,
        "shard_size": settings.shards.shard_bytes,
        "splits": dict(settings.order.fractions),
        "split_at": None if settings.order.split_at is None else dict([settings.order.split_at]),
        **{
            name: getattr(settings.order, name)
            for name in ("seed", "shuffle", "key", "split_by", "stratify", "split_column")
        },
        "split_seed": settings.order.split_seed,
    }
    # Tuples are lists in a manifest.
    current = json.loads(json.dumps(current))
    for name in settings.values.given:
        if name in current:
            saved_name = "shard_bytes" if name == "shard_size" else name
            _check_same(out, name, current[name], saved.get(saved_name))
        elif name in settings.values.kind_options and name not in _PER_INPUT_OPTIONS:
            default = to_json_value(CALLS["build"].options[name].default)
            value = to_json_value(settings.values.kind_options[name])
            _check_same(out, name, value, (saved.get("kind_options") or {}).get(name, default))
    _check_dtypes(out, settings, manifest)
    _check_transform(out, settings, manifest)


def _check_same(out: str, name: str, value: Any, saved: Any) -> None:
    if value != saved and not (value in (None, {}) and saved in (None, {})):
        built = (
            Message("was built with {saved}", saved=option(name, saved))
            if saved not in (None, {})
            else Message("was built without it")
        )
        raise UsageError(
            "{option}: {out} {built}, and appended records must be like the others; leave the "
            "option out, or build a new data set",
            option=option(name, value),
            out=out,
            built=built,
        )


def _check_dtypes(out: str, settings: BuildOptions, manifest: Manifest) -> None:
    """Raises UsageError if a declared dtype differs from the feature of the data set."""
    schema = stored_schema(manifest)
    for name, text in (settings.records.dtypes or {}).items():
        if name not in schema or manifest.options.get("dtypes", {}).get(name) == text:
            continue
        stored = schema[name]
        declared = apply_dtypes(schema, {name: text})[name]
        if (declared.dtype, declared.shape) != (stored.dtype, stored.shape):
            raise UsageError(
                "{dtypes}: {name} is {stored} in {out}",
                dtypes=option("dtypes", {name: text}),
                name=repr(name),
                stored=stored.describe(),
                out=out,
            )


def _check_transform(out: str, settings: BuildOptions, manifest: Manifest) -> None:
    """Raises UsageError if the user names another transform than that of the data set."""
    entry = manifest.transform
    if settings.transform is not None:
        declared = settings.transform
        if isinstance(declared, str | os.PathLike) and os.fspath(declared).endswith(
            (".yaml", ".yml")
        ):
            declared = read_declaration(declared)
        elif isinstance(declared, str | os.PathLike):
            declared = os.path.basename(os.fspath(declared))
        elif callable(declared):
            declared = getattr(declared, "__name__", type(declared).__name__)
        is_same = bool(entry) and entry["given"] == json.loads(json.dumps(declared, default=str))
    elif settings.transform_from is not None:
        saved = load_newest_manifest(settings.transform_from)[1].transform
        is_same = bool(entry) and saved.get("digest") == entry["digest"]
    else:
        return
    if not is_same:
        name = "transform" if settings.transform is not None else "transform_from"
        raise UsageError(
            "{transform}: {out} was built with another transform or none; an append uses that of "
            "the data set, so leave the option out",
            transform=option(name),
            out=out,
        )


def stored_schema(manifest: Manifest) -> Schema:
    """Returns the schema of the records before any transform."""
    return from_pbtxt(manifest.transform.get("raw_schema", manifest.schema))


class KnownInputs:
    """The inputs of a data set, by name, size and time.

    Args:
        generation: The data set.

    Attributes:
        notes: Notes on known and changed files, after a call of `find_new`.

    Raises:
        DataError: A list of inputs is missing or damaged.
    """

    def __init__(self, generation: AppendBase) -> None:
        self._manifest = generation.manifest
        self.notes: tuple[str, ...] = ()
        self._states: defaultdict[str, Counter[tuple[int, str | int]]] = defaultdict(Counter)
        paths = [
            join(generation.out, part.folder, INPUTS_NAME)
            for part in generation.manifest.parts
            # Data in memory has one entry, which is not a file.
            if part.inputs.get("list") and part.kind != "memory"
        ]
        for path, data in zip(paths, thread_map(_read_all, paths, _CONCURRENT_LISTS), strict=True):
            try:
                for line in data.splitlines():
                    entry = json.loads(line)
                    state = entry["bytes"], entry.get("etag") or entry["mtime_ns"]
                    self._states[entry["name"]][state] += 1
            except (ValueError, KeyError, TypeError):
                raise DataError("is not a list of inputs", source=path) from None

    def find_new(self, files: FileTable) -> npt.NDArray[np.bool_]:
        """Returns a mask of the new files, bool [files], and sets `notes`.

        A file is new if the data set lacks it.
        A file with the name of an input of the data set, but another size or time, is new, too.
        Files in several INPUT folders can be equal in all three. Then as many of them are known as
        the data set has, in the order of the folders.

        Raises:
            NothingToAppend: No file is new.
        """
        is_new, changed, notes = np.ones(len(files), np.bool_), list[str](), list[str]()
        candidates = [i for i, name in enumerate(files.names()) if name in self._states]
        num_found: Counter[tuple[str, int, str | int]] = Counter()
        for index, file in zip(candidates, files.items_at(candidates), strict=True):
            state = file.stat.size_bytes, file.stat.etag or file.stat.mtime_ns
            num_found[(file.name, *state)] += 1
            is_new[index] = num_found[(file.name, *state)] > self._states[file.name][state]
            if is_new[index] and state not in self._states[file.name]:
                changed.append(file.name)
        if skipped := int(len(files) - is_new.sum()):
            notes.append(f"inputs that are part of the data set, and were skipped: {skipped:,}")
        if len(files) and not is_new.any():
            raise NothingToAppend(notes[0], self._manifest)
        if changed:
            names = ", ".join(changed[:_MAX_SHOWN_NAMES])
            more = ", ..." if len(changed) > _MAX_SHOWN_NAMES else ""
            notes.append(
                f"inputs that have changed since they became part of the data set: {len(changed):,} "
                f"({names}{more}); they were appended, and their earlier records remain"
            )
        self.notes = tuple(notes)
        return is_new


def _read_all(path: str) -> bytes:
    return b"".join(bytes(block) for block in read_blocks(path, 1 << 20))


def plan_appended(
    settings: BuildOptions, base: AppendBase, plan: Callable[[BuildOptions], Source]
) -> Source:
    """Plans records with the schema of the data set that they are appended to.

    The types of the new records are inferred first. So wider types and new classes are refused at
    once, and not record by record.

    Args:
        settings: The options of the append. A schema in them replaces the inference.
        base: The data set.
        plan: A function that plans the new inputs.

    Raises:
        UsageError: The schema of the data set can't represent the new records.
        DataError: An input is damaged.
    """
    stored = stored_schema(base.manifest)
    # A transform accepts only the features on which it was fitted.
    is_fixed = bool(base.manifest.transform)
    rules = AppendRules(
        base.out,
        settings.records.widen and not is_fixed,
        settings.records.new_classes and not is_fixed,
    )
    kept_columns = [name for name in settings.order.columns if name not in stored]
    if settings.schema is not None:
        schema = extend_schema(stored, settings.schema, rules, "", kept_columns)
        return plan(replace(settings, schema=schema))
    inferred = plan(settings)
    if isinstance(inferred, MemorySource):
        # Keys and splits depend on the name of the source. Without a number of its own, row 0 of
        # each append would be in the same split.
        (file,) = inferred.files
        numbered = replace(file, root=len(base.manifest.parts))
        inferred = replace(inferred, files=FileTable.from_files([numbered]))
    schema = extend_schema(stored, inferred.schema, rules, inferred.kind, kept_columns)
    if schema == inferred.schema:
        return inferred
    # Records that are stored in Arrow files are converted when they are read.
    if isinstance(inferred, MemorySource | ParsedSource):
        return replace(inferred, schema=schema)
    return plan(replace(settings, schema=schema))


def explain_no_statistics(base: AppendBase, settings: BuildOptions) -> tuple[str, ...]:
    """Returns a note if an append leaves the data set without statistics."""
    if settings.run.stats and "sketch" not in base.manifest.statistics:
        return (
            "no statistics: the data set was built without them, and the append does not read its "
            "records again",
        )
    if not settings.run.stats and "file" in base.manifest.statistics:
        return ("no statistics: the data set had some, and the append was made without them",)
    return ()
