"""Rooms of the package, with the imports that each may have and does have."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "recordmill"
AT_TOP = ("pipelines", "schemas", "transforms")  # installed as `recordmill.schemas` and so on
# By room: the other rooms that its modules may import. All of them are above it in this table.
ROOMS: dict[str, str] = {
    "base": "",
    "schemas": "base",
    "storage.stores": "base",
    "storage": "base storage.stores",
    "records": "",
    "records.images": "base",
    "sources": "base records.images",
    "options": "base schemas sources storage",
    "records.protobuf": "base",
    "records.tfrecord": "base storage",
    "records.example": "base records.protobuf records.tfrecord schemas",
    "records.columns": "base records.example records.images records.protobuf schemas",
    "records.inference": "base records.example records.protobuf schemas",
    "records.writers": "base options records.columns records.images schemas storage",
    "statistics": "base records.example records.images schemas",
    "checks": "base records.images schemas statistics storage",
    "sources.common": "base options schemas sources storage",
    "shards": "base options records.tfrecord records.writers schemas sources.common storage",
    "shards.loading": "base records.columns records.example records.inference records.tfrecord schemas shards storage",
    "sources.values": "base schemas sources.common storage",
    "sources.text": "base options schemas sources.common sources.values storage",
    "sources.tfrecord": "base records.inference records.tfrecord schemas shards shards.loading sources.common storage",
    "sources.arrow": "base options records.columns records.example records.protobuf schemas sources.common sources.values "
    "storage",
    "sources.parser": "base options schemas sources.arrow sources.common sources.values storage",
    "sources.csv": "base options schemas sources.common sources.values storage",
    "sources.jsonl": "base options schemas sources.common sources.values storage",
    "sources.images": "base options records.images schemas sources.arrow sources.common sources.csv sources.jsonl "
    "sources.values storage",
    "preprocessing": "base schemas shards storage",
    "building": "base checks options preprocessing records.example records.tfrecord records.writers schemas shards "
    "sources.common statistics storage",
    "building.workers": "base building preprocessing shards statistics storage",
    "exporting": "base building.workers options records.columns records.example records.inference records.protobuf "
    "records.tfrecord records.writers schemas shards shards.loading storage",
    "reader.sampling": "base options",
    "reader.options": "base options reader.sampling records.columns schemas",
    "reader.prefetch": "base reader.sampling records.columns records.tfrecord schemas shards storage",
    "reader.images": "base reader.options reader.prefetch reader.sampling records.columns records.example records.images "
    "schemas",
    "reader.batches": "base options reader.images reader.options reader.prefetch reader.sampling records.columns records.example schemas "
    "shards",
    "reader.tensorflow": "base options reader.batches reader.options reader.prefetch records.columns schemas",
    "reader.torch": "base reader.batches reader.sampling records.columns storage",
    "reader": "base checks options reader.batches reader.images reader.options reader.prefetch reader.sampling "
    "reader.torch records.columns records.example records.images records.inference records.protobuf records.tfrecord "
    "records.writers schemas shards shards.loading statistics storage",
    "reader.inspect": "base options reader records.columns records.images records.inference records.protobuf "
    "records.tfrecord schemas shards shards.loading statistics storage",
    "reader.report": "base reader reader.images reader.options reader.sampling records.images schemas "
    "shards statistics storage",
    "transforms": "base building building.workers exporting options records.example records.tfrecord schemas shards "
    "sources.arrow sources.parser sources.values storage",
    "transforms.tft": "base building building.workers preprocessing schemas storage transforms",
    "pipelines.remote": "base building.workers options shards sources storage transforms",
    "pipelines": "base building building.workers checks exporting options pipelines.remote preprocessing "
    "records.columns records.inference records.writers schemas shards shards.loading sources "
    "sources.arrow sources.common sources.images sources.parser sources.values statistics storage transforms "
    "transforms.tft",
    "commands": "base checks options pipelines pipelines.remote reader reader.inspect reader.report records.writers "
    "schemas shards sources statistics storage",
}
FOLDERS = tuple(dict.fromkeys(room.split(".")[0] for room in ROOMS))


def folder_of(room: str) -> Path:
    """Returns the folder of a room.

    >>> folder_of("schemas").relative_to(ROOT).as_posix()
    'schemas'
    >>> folder_of("records.example").relative_to(PACKAGE).as_posix()
    'records/example'
    """
    parts = room.split(".")
    return (ROOT if parts[0] in AT_TOP else PACKAGE).joinpath(*parts)


def all_modules(folder: str | None = None) -> list[Path]:
    """Returns all modules of the rooms, or of a folder in FOLDERS."""
    return [
        path
        for name in ([folder] if folder else FOLDERS)
        for path in sorted(folder_of(name).rglob("*.py"))
    ]


def installed_path(path: Path) -> Path:
    """Returns the path of a module in the installed package, as in `records/example/encode.py`."""
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT)


def module_name(path: Path) -> str:
    """Returns the name of a module, as in `recordmill.records.example.encode`."""
    return ".".join(("recordmill", *installed_path(path).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


def modules(room: str) -> list[Path]:
    """Returns the modules of a room, without the modules of rooms in it."""
    paths = sorted(folder_of(room).glob("*.py"))
    assert paths, room
    return paths


def is_any(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def room_of(name: str) -> str:
    """Returns the room of an imported name.

    The name begins with `recordmill.` and is a module, a room, or a room and an attribute.

    >>> room_of("recordmill.records.tfrecord.frames"), room_of("recordmill.records.tfrecord")
    ('records.tfrecord', 'records.tfrecord')
    >>> room_of("recordmill.schemas.feature")
    'schemas'
    """
    name = name.removeprefix("recordmill.")
    return next(
        iter(sorted((room for room in ROOMS if is_any(name, {room})), key=len, reverse=True)), name
    )


def is_standard(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


@cache
def parse_module(path: Path) -> ast.Module:
    """Returns the syntax tree of a module, which tests must not change."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Yields all imports of a module, including the imports in functions.

    Yields:
        (imported name, line, whether the import runs when the module is imported).
    """
    yield from _imports(parse_module(path), True)


def _imports(node: ast.AST, at_import: bool) -> Iterator[tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (
                (name, line, False)
                for name, line, _ in _imports(child, False)
                if name.startswith("recordmill")
            )
        elif isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: a relative import; write recordmill.…"
            yield from ((name, child.lineno, at_import) for name in _imported(child))
        else:
            yield from _imports(
                child,
                at_import
                and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda),
            )


def _imported(statement: ast.ImportFrom) -> list[str]:
    """Returns the module of each imported name. A name may be a module itself."""
    module = statement.module or ""
    names = [f"{module}.{alias.name}" for alias in statement.names]
    return (
        [name if is_module(name) else module for name in names]
        if module.split(".")[0] == "recordmill"
        else [module]
    )


def is_module(name: str) -> bool:
    path = folder_of(name.removeprefix("recordmill."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()
