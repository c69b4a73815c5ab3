"""The structure of the package against its declared table: who may import whom, no cycles, a sentence at
each door.
"""

from __future__ import annotations

import ast
import graphlib

import pytest
from rooms import (
    FOLDERS,
    ROOMS,
    all_modules,
    dotted,
    folder_of,
    imports,
    installed,
    is_any,
    is_standard,
    modules,
    parsed,
    room_of,
)

# what the base install has
BASE = {"numpy", "pyarrow", "numba", "llvmlite", "PIL", "tensorflow_metadata", "google.protobuf", "blake3", "isal"}
# may import it in functions: a saved graph, tf.data, and a ragged value that becomes a tf.RaggedTensor
TENSORFLOW = {"preprocessing", "records/columns/ragged.py"}
SHELL = {"apache_beam", "grpc", "tensorflow_transform", "tfx_bsl"}  # the Beam shell's own, in SHELL_FOLDERS only
SHELL_FOLDERS = ("transforms", "transforms.tft", "pipelines.remote", "pipelines")
# may import a framework at the top of a module; the others import their modules when they are asked for
FRAMEWORKS = {"reader.torch": {"torch"}, "reader.tensorflow": {"tensorflow"}}


def test_the_table_names_every_room() -> None:
    there = {".".join(installed(path).parent.parts) for path in all_modules() if path.name == "__init__.py"}
    assert there == set(ROOMS), (
        "each folder with modules has a line in ROOMS of tests/contract/rooms.py, and each line a folder"
    )
    unlabelled = [path for path in all_modules() if not (path.parent / "__init__.py").exists()]
    assert not unlabelled, unlabelled


def test_the_table_has_no_cycle() -> None:
    """Each room stands below all that it imports, and the reader is a leaf:
    a build never depends on how its output is read.
    """
    seen: list[str] = []
    for room, allowed in ROOMS.items():
        assert set(allowed.split()) <= set(seen), (
            f"{room} imports {set(allowed.split()) - set(seen)}: its line belongs below theirs"
        )
        seen.append(room)
    for room in ("transforms", "pipelines"):
        assert not any(is_any(name, {"reader"}) for name in ROOMS[room].split())


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_table_says(room: str) -> None:
    allowed = {room, *ROOMS[room].split()}
    wrong, used = [], set()
    for path in modules(room):
        for name, line, _ in imports(path):
            if is_any(name, set(FOLDERS)) and not is_standard(name):
                wrong.append(f"{installed(path)}:{line} imports {name} without recordmill.")
            elif is_any(name, {"recordmill"}):
                used.add(room_of(name))
                if room_of(name) not in allowed:
                    wrong.append(f"{installed(path)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)
    assert allowed - {room} <= used, f"the table allows {room} what it does not use: {sorted(allowed - used)}"


def test_no_module_imports_itself_through_others() -> None:
    """Neither at import nor in functions nor for type checkers."""
    paths = {dotted(path): path for path in all_modules()}
    graph = {name: {found for found, _, _ in imports(path) if found in paths} for name, path in paths.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which shows the cycle


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is(room: str) -> None:
    said = ast.get_docstring(ast.parse((folder_of(room) / "__init__.py").read_text(encoding="utf-8")))
    assert said, f"{room}/__init__.py says nothing"


@pytest.mark.parametrize("room", ROOMS)
def test_what_others_may_call_says_what_it_does(room: str) -> None:
    silent = [
        f"{installed(path)}:{node.lineno} {node.name}"
        for path in modules(room)
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if not ast.get_docstring(node)
    ]
    assert not silent, "\n".join(silent)


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in SHELL_FOLDERS])
def test_outside_the_beam_shell_modules_need_the_base_install_only(room: str) -> None:
    """TensorFlow and optional packages may be imported inside functions; Beam not even there."""
    wrong = []
    for path in modules(room):
        for name, line, at_import in imports(path):
            if is_standard(name) or is_any(name, {"recordmill"} | BASE | FRAMEWORKS.get(room, set())):
                continue
            for_tensorflow = {room, installed(path).as_posix()} & TENSORFLOW
            if is_any(name, SHELL) or at_import or (is_any(name, {"tensorflow", "keras"}) and not for_tensorflow):
                wrong.append(f"{installed(path)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)
