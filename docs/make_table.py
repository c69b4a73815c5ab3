"""Makes the table of docs/foreign-files.md from TFRecord files of other systems.

    python docs/make_table.py FOLDER         prints the table
    python docs/make_table.py FOLDER PAGE    writes it into the page

The page has a line that names this program. The table replaces everything after that line.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import recordmill
from recordmill.reader.inspect.summary import summarise
from recordmill.schemas.feature import OPAQUE_BYTES, Feature, Schema

MARK = "<!-- python docs/make_table.py FOLDER docs/foreign-files.md -->\n"
_COLUMNS = 2  # the number of columns that a row shows
# files that describe the TFRecord files
_OTHERS = frozenset((".md", ".jsonl", ".repo", ".json", ".txt"))

# repository to the system that has written its files
_SYSTEMS = {
    "GoogleCloudPlatform+cloudml-samples": "Cloud ML samples",
    "NVIDIA+DeepLearningExamples": "Object Detection API",
    "aws+sagemaker-tensorflow-extensions": "SageMaker pipe mode",
    "calico+basenji": "Basenji",
    "google+grain": "Grain",
    "google+nucleus": "Nucleus",
    "google+trax": "Trax, TensorFlow Datasets",
    "google+yggdrasil-decision-forests": "Yggdrasil Decision Forests",
    "google-deepmind+deepmind-research": "IODINE",
    "intel-analytics+BigDL-2.x": "BigDL",
    "linkedin+detext": "DeText",
    "magenta+magenta": "Magenta",
    "openvinotoolkit+datumaro": "Datumaro, Roboflow",
    "pytorch+data": "TorchData",
    "spotify+spotify-tensorflow": "Scio",
    "tensorflow+agents": "TF-Agents",
    "tensorflow+ecosystem": "Hadoop, Spark",
    "tensorflow+lingvo": "Lingvo",
    "tensorflow+ranking": "TensorFlow Ranking",
    "tensorflow+tfx": "TensorFlow Extended",
}
# part of a path to a description of records that are binary, but not Examples
_MESSAGES = {
    "google+nucleus/": "messages of genomics (reads, variants, ranges)",
    "_stats.pb": "statistics of TensorFlow Data Validation",
    ".tfrecord.spec": "the specification of the file in the row above",
    "events.out.tfevents": "events of TensorBoard",
    "en_fr.tfrecord": "pairs of sentences in a message of Lingvo's own",
}


@dataclass(frozen=True)
class Set:
    """Files that users would read together: with one folder, message and compression.

    Attributes:
        repository: The folder of one project, OWNER+NAME.
        folder: The folder of the files, relative to the repository.
        message: The type of the records.
        compression: The compression of the files.
        paths: The files.
    """

    repository: str
    folder: str
    message: str
    compression: str
    paths: tuple[Path, ...]


def sets_of(folder: Path) -> list[Set]:
    """Returns the files as sets, in the order of their names."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for path in sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in _OTHERS and not path.name.startswith("LICENSE")
    ):
        opened = recordmill.open(path)
        repository, *parents = path.relative_to(folder).parts[:-1]
        key = (
            repository,
            "/".join(parents),
            opened.full_schema.message,
            opened.records.catalog.files[0].compression,
        )
        groups.setdefault(key, []).append(path)
    return [
        Set(repository, inner, message, compression, tuple(paths))
        for (repository, inner, message, compression), paths in groups.items()
    ]


def table(folder: Path) -> str:
    """Returns the Markdown table, followed by a line with the totals."""
    rows, files, records, rejected = [], 0, 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        for number, one in enumerate(sets_of(folder)):
            result = recordmill.read(list(one.paths), Path(temporary, str(number)))
            files, records, rejected = (
                files + len(one.paths),
                records + result.written,
                rejected + result.rejected,
            )
            columns = "" if one.message == OPAQUE_BYTES else _columns(result.schema)
            cells = (
                *_names(one),
                _message(one),
                f"{result.written:,}",
                columns,
                "; ".join(_notes(one)),
            )
            rows.append("| " + " | ".join(cells) + " |")
    head = (
        "| system | files | type of the records | number of records | first columns | contents of bytes |\n"
        "|---|---|---|---|---|---|"
    )
    rejects = "No record was rejected" if not rejected else f"{rejected:,} records were rejected"
    total = f"Together these are {files} files with {records:,} records. {rejects}."
    return "\n".join([head, *rows, "", total]) + "\n"


def _names(one: Set) -> tuple[str, str]:
    first = "/".join([*one.folder.split("/")[-1:], one.paths[0].name])
    files = f"`{_cell(first)}`" + (f" (1 of {len(one.paths)})" if len(one.paths) > 1 else "")
    return _SYSTEMS.get(one.repository, one.repository), files


def _message(one: Set) -> str:
    return "bytes" if one.message == OPAQUE_BYTES else one.message


def _columns(schema: Schema) -> str:
    """Describes the first columns, with dtype and shape."""
    shown = [_column(feature) for feature in schema.features[:_COLUMNS]]
    return ", ".join(shown) + (f", {len(schema) - _COLUMNS} more" if len(schema) > _COLUMNS else "")


def _column(feature: Feature) -> str:
    return f"`{_cell(feature.name)}` {feature.describe()}{'' if feature.required else ' or none'}"


def _notes(one: Set) -> Iterator[str]:
    """Yields what the features of bytes contain."""
    summary = summarise(recordmill.open(list(one.paths)).records.open_files)
    for name, stats in summary.features.items():
        kinds = (
            [kind for kind in stats.contents.kinds if kind not in ("empty", "binary")]
            if stats.contents
            else []
        )
        if one.message == OPAQUE_BYTES:
            words = next(
                (words for part, words in _MESSAGES.items() if part in one.paths[0].as_posix()),
                "no Examples",
            )
            yield " and ".join(kinds) or words
        elif kinds:
            yield f"`{_cell(name)}`: {' and '.join(kinds)}"
        elif summary.schema[name].dtype == "bytes" and stats.sizes == (1, 1):
            yield f"`{_cell(name)}`: single bytes"
    for name, guesses in summary.guesses().items() if one.message != OPAQUE_BYTES else ():
        yield f"`{_cell(name)}`: perhaps {guesses[0]}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Iterable[str]) -> None:
    folder, *pages = (Path(argument) for argument in arguments)
    made = table(folder)
    for page in pages:
        before, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
        page.write_text(before + mark + "\n" + made, encoding="utf-8")
    if not pages:
        sys.stdout.write(made)


if __name__ == "__main__":
    main(sys.argv[1:])
