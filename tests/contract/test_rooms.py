"""Rooms import only the rooms that the table allows, without cycles, and are documented."""

import ast
import graphlib
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from rooms import (
    FOLDERS,
    PACKAGE,
    ROOMS,
    ROOT,
    all_modules,
    folder_of,
    imports,
    installed_path,
    is_any,
    is_standard,
    module_name,
    modules,
    parse_module,
    room_of,
)

# Packages of the base install.
BASE = {"numpy", "pyarrow", "PIL", "tensorflow_metadata", "google.protobuf", "blake3", "isal"}
# These rooms and modules may import TensorFlow in functions, to load a saved graph, to use
# tf.data, or to make a tf.RaggedTensor.
TENSORFLOW = {"preprocessing", "records/columns/ragged.py"}
# Packages of the Beam shell, which only SHELL_FOLDERS import.
SHELL = {
    "apache_beam",
    "grpc",
    "tensorflow_transform",
    "tfx_bsl",
}
SHELL_FOLDERS = ("transforms", "transforms.tft", "pipelines.remote", "pipelines")
# Rooms that may import a framework at the top of a module. Other rooms import their modules on
# demand.
FRAMEWORKS = {"reader.torch": {"torch"}, "reader.tensorflow": {"tensorflow"}}


def test_table_lists_every_room() -> None:
    rooms = {
        ".".join(installed_path(path).parent.parts)
        for path in all_modules()
        if path.name == "__init__.py"
    }
    assert rooms == set(ROOMS), (
        "each folder with modules has a line in ROOMS of tests/contract/rooms.py, and each line a folder"
    )
    unlabelled = [path for path in all_modules() if not (path.parent / "__init__.py").exists()]
    assert not unlabelled, unlabelled


def test_table_of_rooms_has_no_cycle() -> None:
    """Each room is below all rooms that it imports."""
    upper_rooms: list[str] = []
    for room, allowed in ROOMS.items():
        assert set(allowed.split()) <= set(upper_rooms), (
            f"{room} imports {set(allowed.split()) - set(upper_rooms)}: its line belongs below theirs"
        )
        upper_rooms.append(room)


@pytest.mark.parametrize("room", ["transforms", "pipelines"])
def test_room_that_builds_does_not_import_the_reader(room: str) -> None:
    """No build depends on how its output is read."""
    assert not any(is_any(name, {"reader"}) for name in ROOMS[room].split())


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_rooms_that_the_table_allows(room: str) -> None:
    allowed = {room, *ROOMS[room].split()}
    problems, used = [], set()
    for path in modules(room):
        for name, line, _ in imports(path):
            if is_any(name, set(FOLDERS)) and not is_standard(name):
                problems.append(f"{installed_path(path)}:{line} imports {name} without recordmill.")
            elif is_any(name, {"recordmill"}):
                used.add(room_of(name))
                if room_of(name) not in allowed:
                    problems.append(f"{installed_path(path)}:{line} imports {name}")
    assert not problems, "\n".join(problems)
    assert allowed - {room} <= used, (
        f"the table allows {room} what it does not use: {sorted(allowed - used)}"
    )


def test_no_module_imports_itself_through_others() -> None:
    paths = {module_name(path): path for path in all_modules()}
    graph = {
        name: {imported_name for imported_name, _, _ in imports(path) if imported_name in paths}
        for name, path in paths.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which shows the cycle


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_a_docstring(room: str) -> None:
    docstring = ast.get_docstring(
        ast.parse((folder_of(room) / "__init__.py").read_text(encoding="utf-8"))
    )
    assert docstring, f"{room}/__init__.py says nothing"


@pytest.mark.parametrize("room", ROOMS)
def test_public_function_or_class_has_a_docstring(room: str) -> None:
    undocumented = [
        f"{installed_path(path)}:{node.lineno} {node.name}"
        for path in modules(room)
        for node in parse_module(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if not ast.get_docstring(node) and "overload" not in map(ast.unparse, node.decorator_list)
    ]
    assert not undocumented, "\n".join(undocumented)


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in SHELL_FOLDERS])
def test_modules_outside_the_beam_shell_need_only_the_base_install(room: str) -> None:
    problems = []
    for path in modules(room):
        for name, line, at_import in imports(path):
            if is_standard(name) or is_any(
                name, {"recordmill"} | BASE | FRAMEWORKS.get(room, set())
            ):
                continue
            for_tensorflow = {room, installed_path(path).as_posix()} & TENSORFLOW
            if (
                is_any(name, SHELL)
                or at_import
                or (is_any(name, {"tensorflow", "keras"}) and not for_tensorflow)
            ):
                problems.append(f"{installed_path(path)}:{line} imports {name}")
    assert not problems, "\n".join(problems)


# Names that several modules define, because a table or a caller looks them up by name.
SHARED = {
    "add_parser": "each command's flags",
    "run": "each command",
    "main": "each program",
}
# Words that describe the history or the relations of a thing instead of the thing itself.
NO_NOUNS = {
    "about",
    "after",
    "around",
    "asked",
    "before",
    "begun",
    "behind",
    "beside",
    "covering",
    "done",
    "found",
    "given",
    "held",
    "here",
    "kept",
    "known",
    "left",
    "listed",
    "made",
    "meant",
    "once",
    "past",
    "placed",
    "said",
    "seen",
    "shown",
    "spread",
    "stored",
    "straight",
    "taken",
    "taking",
    "terms",
    "tied",
    "told",
    "viewed",
}


def _modules() -> list[Path]:
    return [*all_modules(), *sorted(PACKAGE.glob("*.py"))]


def _public(tree: ast.Module) -> Iterator[str]:
    """Yields the public functions and classes of a module.

    Constants are left out, because several modules may use one name.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_public_name_is_defined_in_one_module() -> None:
    places = defaultdict(set)
    for path in _modules():
        for name in _public(parse_module(path)):
            places[name].add(installed_path(path).as_posix())
    conflicts = {
        name: sorted(names)
        for name, names in places.items()
        if len(names) > 1 and name not in SHARED
    }
    assert not conflicts, "\n".join(
        f"{name}: {', '.join(names)}" for name, names in sorted(conflicts.items())
    )


def test_modules_are_named_by_nouns() -> None:
    problems = [
        installed_path(path).as_posix()
        for path in all_modules()
        if set(path.stem.split("_")) & NO_NOUNS
    ]
    assert not problems, "\n".join(problems)


def _documented() -> Iterator[tuple[Path, ast.AST, str]]:
    """Yields (module, definition, docstring) of all modules, classes and functions."""
    for path in _modules():
        for node in ast.walk(parse_module(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield path, node, ast.get_docstring(node) or ""


def _section(text: str, title: str) -> list[str]:
    """Returns the names that a section of a docstring describes."""
    lines = re.search(rf"(?m)^{title}:\n((?: .*\n?|\n(?= ))+)", text)
    return re.findall(r"(?m)^    \**(\w+): ", lines[1]) if lines else []


def test_docstring_sections_list_existing_parameters_and_fields() -> None:
    problems = []
    for path, node, text in _documented():
        if isinstance(node, ast.FunctionDef):
            names = {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
            described_names = _section(text, "Args")
        elif isinstance(node, ast.ClassDef) and not node.bases:
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            names |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            names |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
            described_names = [*_section(text, "Args"), *_section(text, "Attributes")]
        else:
            continue
        problems += [
            f"{installed_path(path)}: {node.name}: {name}"
            for name in described_names
            if name not in names
        ]
    assert not problems, "\n".join(sorted(set(problems)))


# Words of other libraries, of files and of examples.
FOREIGN = {
    "DatasetFeatureStatistics",
    "LICENSE",
    "Normalization",
    "Train",
    "cats",
    "class_weight",
    "collate_fn",
    "custom_objects",
    "fitted_COLUMN_RESULT",
    "fitted_NUMBER_NAME",
    "fixed_size_list",
    "ls",
    "mean_red",
    "mkstemp",
    "photo",
    "row_splits_1",
    "std_dev_red",
    "tensorflow_data_validation",
    "to_pandas_dtype",
    "unsup",
    "val2017",
}


def _comments(path: Path) -> list[str]:
    with path.open("rb") as file:
        return [
            token.string
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.COMMENT
        ]


def test_words_in_backticks_are_names_in_the_code() -> None:
    texts = [
        path.read_text(encoding="utf-8") for path in [*_modules(), *(ROOT / "native").glob("*.*")]
    ]
    code = [re.sub(r'(?s)"""(.*?)"""', "", text) for text in texts]
    code = [re.sub(r"(?m)(?<![\"'])#.*$", "", text) for text in code]
    words = {word for text in code for word in re.findall(r"\w+", text)} | {
        path.stem for path in _modules()
    }
    prose = [(path, text) for path, _, text in _documented()]
    prose += [(path, comment) for path in _modules() for comment in _comments(path)]
    problems = [
        f"{installed_path(path)}: `{name}`"
        for path, text in prose
        for name in re.findall(r"`([A-Za-z_]\w*)`", text)
        if name not in words | FOREIGN
    ]
    assert not problems, "\n".join(sorted(set(problems)))


def test_arguments_and_fields_are_described_in_sections() -> None:
    """Phrases such as `path: the file.` in prose would become stale unnoticed."""
    problems = []
    for path, node, text in _documented():
        if isinstance(node, ast.Module):
            continue
        names = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
        names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        body = re.split(
            r"(?m)^(?:Args|Attributes|Returns|Raises|Yields|Examples?|Notes?):$|^>>>", text
        )[0]
        problems += [
            f"{installed_path(path)}: {node.name}: {name}:"
            for name in re.findall(r"(?:^|\. |\n)([a-z_]+): ", body)
            if name in names
        ]
    assert not problems, "\n".join(sorted(set(problems)))


def test_module_named_in_a_docstring_exists() -> None:
    names = {module_name(path).removeprefix("recordmill.") for path in _modules()} | set(ROOMS)
    problems = []
    for path, _, text in _documented():
        for name in re.findall(r"`((?:[a-z_]+\.)+\w+)`", text):
            parts = name.split(".")
            if parts[0] in FOLDERS and not names & {
                name,
                ".".join(parts[:-1]),
                ".".join(parts[:-2]),
            }:
                problems.append(f"{installed_path(path)}: `{name}`")
    assert not problems, "\n".join(sorted(set(problems)))


# Names of `os` and `os.path` that touch no file.
OF_OS = {
    "PathLike",
    "cpu_count",
    "environ",
    "fsdecode",
    "fsencode",
    "fspath",
    "getpid",
    "path",
    "register_at_fork",
}
OF_OS |= {"kill", "sched_getaffinity", "strerror"}
OF_PATH = {
    "abspath",
    "basename",
    "commonpath",
    "dirname",
    "isabs",
    "join",
    "normpath",
    "relpath",
    "split",
    "splitext",
}
# Methods of pathlib that touch files. `replace` is missing, because `str` has a `replace` with two
# arguments, too.
OF_PATHS = {
    "chmod",
    "exists",
    "expanduser",
    "glob",
    "hardlink_to",
    "is_dir",
    "is_file",
    "is_symlink",
    "iterdir",
}
OF_PATHS |= {
    "lchmod",
    "lstat",
    "mkdir",
    "owner",
    "read_bytes",
    "read_text",
    "readlink",
    "rename",
    "resolve",
    "rglob",
}
OF_PATHS |= {
    "rmdir",
    "samefile",
    "stat",
    "symlink_to",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}
OPENERS = {"LockFile", "Image", "archive"}  # their `open` is not a method of pathlib
MODULES = {"fcntl", "fileinput", "glob", "mmap", "shutil", "tempfile"}
# Names of other libraries that touch files.
OF_LIBRARIES = {
    "OSFile",
    "memory_map",
    "memmap",
    "open_memmap",
    "fromfile",
    "tofile",
    "FileIO",
}
# Uses that are not storage: files of the installation, the machine and the process.
NO_STORAGE = {
    "__main__.py": "the end of the process",
    "base/display.py": "the width of the terminal",
    "base/machine.py": "/sys/fs/cgroup, which says how many cores there are",
    "commands/main.py": "the standard streams of the process",
    "reader/torch/datasets.py": "a file without a name, which is memory that processes share",
    "records/writers/npy.py": "NumPy maps the arrays that a read wrote, for the user",
    "sources/parser/worker.py": "the pipes of the process, and its end",
    "transforms/worker.py": "the program that its process becomes",
}


def _modules_outside_storage() -> Iterator[Path]:
    for room in ROOMS:
        if room.split(".")[0] != "storage":
            yield from modules(room)
    yield from sorted(PACKAGE.glob("*.py"))


def _file_accesses(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, code) of each place that may open, inspect or change a file."""
    tree = parse_module(path)
    own_names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recordmill")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (node.lineno, alias.name)
                for alias in node.names
                if alias.name.split(".")[0] in MODULES
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES | {
            "os"
        }:
            yield node.lineno, f"from {node.module}"
        elif isinstance(node, ast.Attribute) and _is_touching(node):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call):
            yield from _file_calls(node, own_names)


def _is_touching(node: ast.Attribute) -> bool:
    allowed = {"os": OF_OS, "os.path": OF_PATH}.get(ast.unparse(node.value))
    if allowed is not None:
        return node.attr not in allowed
    return node.attr in OF_LIBRARIES or ast.unparse(node) in ("io.open", "np.load", "np.save")


def _file_calls(node: ast.Call, own_names: set[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node.func, ast.Name):
        if node.func.id == "open" and "open" not in own_names:
            yield node.lineno, "open"
    elif isinstance(node.func, ast.Attribute):
        call = ast.unparse(node.func)
        if call.split(".")[0] in own_names:
            return
        replaces = node.func.attr == "replace" and len(node.args) == 1 and not node.keywords
        if (
            replaces
            or node.func.attr in OF_PATHS
            or (node.func.attr == "open" and call.split(".")[0] not in OPENERS)
        ):
            yield node.lineno, f"{call}()"


@pytest.mark.parametrize(
    "path", _modules_outside_storage(), ids=lambda path: installed_path(path).as_posix()
)
def test_module_outside_storage_accesses_no_files(path: Path) -> None:
    name = installed_path(path).as_posix()
    places = [f"{name}:{line}: {code}" for line, code in _file_accesses(path)]
    assert bool(places) == (name in NO_STORAGE), places or f"{name} need not be excepted any more"
