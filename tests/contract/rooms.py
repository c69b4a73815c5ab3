"""The rooms of the package, which of them each may import, and the import statements of their modules."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS: dict[str, str] = {  # room: the rooms that its modules may import beside its own; all of them stand above it
    "base.people": "",
    "base.compiled": "",
    "base": "base.compiled",
    "schemas": "base",
    "storage.stores": "base",
    "storage.listed": "storage.stores",
    "storage.disk": "base",
    "storage": "base storage.disk storage.listed storage.stores",
    "engines": "base storage",
    "images": "base",
    "sources": "base base.people images",
    "records": "",
    "records.tfrecord": "base storage",
    "records.protobuf": "base",
    "records.example": "base records.protobuf records.tfrecord schemas",
    "records.inference": "base records.example records.protobuf schemas",
    "records.columns": "base base.people images records.example records.protobuf records.tfrecord schemas",
    "records.writers": "base base.people images records.columns schemas storage",
    "pipelines.options": "base base.people records.writers schemas sources storage",
    "shards.entries": "base schemas storage storage.listed",
    "shards": "base base.people engines records.tfrecord records.writers schemas shards.entries storage storage.listed",
    "shards.loads": "base records.columns records.example records.inference records.tfrecord schemas shards storage",
    "sources.inputs": "base images schemas sources storage storage.listed",
    "sources.values": "base base.people schemas sources.inputs",
    "sources.csv.sniff": "base",
    "sources.csv": "base schemas sources.csv.sniff sources.inputs sources.values storage storage.listed",
    "sources.jsonl": "base schemas sources.inputs sources.values storage storage.listed",
    "sources.text": "base base.people schemas sources.inputs storage storage.listed",
    "sources.images": "base base.people images schemas sources.csv sources.inputs sources.jsonl sources.values storage "
    "storage.listed",
    "sources.arrow": "base base.people schemas sources.inputs sources.values storage storage.listed",
    "sources.tfrecord": "base base.people records.inference records.tfrecord schemas shards shards.loads "
    "sources.inputs storage storage.listed",
    "preprocessing": "base base.people schemas shards storage",
    "building": "base preprocessing records.example records.tfrecord records.writers schemas shards shards.entries "
    "sources.inputs storage storage.disk storage.listed",
    "building.straight": "base building records.tfrecord shards shards.entries sources.inputs storage storage.disk",
    "building.spread": "base building preprocessing shards shards.entries sources.inputs storage storage.listed",
    "exporting.choices": "base base.people records.columns records.protobuf records.writers schemas shards "
    "shards.loads",
    "exporting": "base base.people exporting.choices records.columns records.example records.inference "
    "records.tfrecord records.writers schemas shards shards.loads storage storage.listed",
    "exporting.stored": "base exporting records.columns shards storage",
    "exporting.spread": "base building.spread exporting records.writers shards storage storage.listed",
    "reader.sampling": "base",
    "reader.options": "base base.people reader.sampling records.columns schemas",
    "reader.prefetch": "base reader.options reader.sampling records.columns records.tfrecord schemas shards "
    "shards.loads",
    "reader.images": "base images reader.options reader.prefetch reader.sampling records.columns schemas",
    "reader.batches": "base reader.images reader.options reader.prefetch reader.sampling records.columns schemas "
    "shards",
    "reader.tensorflow": "base base.people images reader.batches reader.images reader.options reader.prefetch "
    "records.columns schemas storage",
    "reader.torch": "base reader.batches reader.images reader.options reader.prefetch reader.sampling "
    "records.columns schemas",
    "reader": "base base.people images reader.batches reader.images reader.options reader.prefetch "
    "reader.sampling reader.torch records.columns records.inference records.tfrecord records.writers "
    "schemas shards shards.loads storage",
    "reader.inspect": "base images reader records.columns records.inference records.protobuf schemas shards "
    "shards.loads storage",
    "transforms": "base building building.spread building.straight exporting exporting.spread records.example "
    "records.tfrecord schemas shards shards.entries sources.arrow sources.values storage",
    "transforms.tft": "base building building.spread preprocessing schemas shards sources.inputs storage transforms",
    "pipelines.remote": "base base.people building.spread engines pipelines.options shards sources storage transforms",
    "pipelines": "base base.people building building.spread engines exporting exporting.choices exporting.spread "
    "exporting.stored pipelines.options pipelines.remote preprocessing records.columns records.inference "
    "records.writers schemas shards shards.loads sources sources.arrow sources.inputs storage storage.listed "
    "transforms transforms.tft",
}
FOLDERS = tuple(dict.fromkeys(room.split(".")[0] for room in ROOMS))


def folder_of(room: str) -> Path:
    return ROOT.joinpath(*room.split("."))


def modules(room: str) -> list[Path]:
    """The room's own modules, without those of the rooms in it."""
    found = sorted(folder_of(room).glob("*.py"))
    assert found, room
    return found


def is_any(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def room_of(name: str) -> str:
    """The room of an imported `recordmill.…` name, which may be a module, a room, or (a room and) what a module has.

    >>> room_of("recordmill.records.tfrecord.frames"), room_of("recordmill.records.tfrecord")
    ('records.tfrecord', 'records.tfrecord')
    >>> room_of("recordmill.schemas.feature")
    'schemas'
    """
    name = name.removeprefix("recordmill.")
    return next(iter(sorted((room for room in ROOMS if is_any(name, {room})), key=len, reverse=True)), name)


def is_standard(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(dotted name, line, whether it is imported when the module is) of every import,
    in functions and for type checkers, too.
    """
    yield from _imports(ast.parse(path.read_text(encoding="utf-8")), True)


def _imports(node: ast.AST, at_import: bool) -> Iterator[tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (
                (name, line, False) for name, line, _ in _imports(child, False) if name.startswith("recordmill")
            )
        elif isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: a relative import; write recordmill.…"
            yield from ((name, child.lineno, at_import) for name in _imported(child))
        else:
            yield from _imports(
                child, at_import and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            )


def _imported(statement: ast.ImportFrom) -> list[str]:
    """What is imported: the module, or modules of a room or of the root."""
    module = statement.module or ""
    names = [f"{module}.{alias.name}" for alias in statement.names]
    return [name if is_module(name) else module for name in names] if module.split(".")[0] == "recordmill" else [module]


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.removeprefix("recordmill.").split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()
