"""The package has the declared structure: rooms import only what the table allows, without
cycles, and are documented.
"""

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
BASE = {"numpy", "pyarrow", "PIL", "tensorflow_metadata", "google.protobuf", "blake3", "isal"}
# may import it in functions: a saved graph, tf.data, and a ragged value that becomes a
# tf.RaggedTensor
TENSORFLOW = {"preprocessing", "records/columns/ragged.py"}
SHELL = {
    "apache_beam",
    "grpc",
    "tensorflow_transform",
    "tfx_bsl",
}  # the Beam shell's own, in SHELL_FOLDERS only
SHELL_FOLDERS = ("transforms", "transforms.tft", "pipelines.remote", "pipelines")
# may import a framework at the top of a module; the others import their modules when they are asked
# for
FRAMEWORKS = {"reader.torch": {"torch"}, "reader.tensorflow": {"tensorflow"}}


def test_table_lists_every_room() -> None:
    there = {
        ".".join(installed(path).parent.parts)
        for path in all_modules()
        if path.name == "__init__.py"
    }
    assert there == set(ROOMS), (
        "each folder with modules has a line in ROOMS of tests/contract/rooms.py, and each line a folder"
    )
    unlabelled = [path for path in all_modules() if not (path.parent / "__init__.py").exists()]
    assert not unlabelled, unlabelled


def test_table_of_rooms_has_no_cycle() -> None:
    """Each room stands below all that it imports; the reader is a leaf: no build depends on how its
    output is read.
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
def test_room_imports_only_what_the_table_allows(room: str) -> None:
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
    assert allowed - {room} <= used, (
        f"the table allows {room} what it does not use: {sorted(allowed - used)}"
    )


def test_no_module_imports_itself_through_others() -> None:
    paths = {dotted(path): path for path in all_modules()}
    graph = {
        name: {found for found, _, _ in imports(path) if found in paths}
        for name, path in paths.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which shows the cycle


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_a_docstring(room: str) -> None:
    said = ast.get_docstring(
        ast.parse((folder_of(room) / "__init__.py").read_text(encoding="utf-8"))
    )
    assert said, f"{room}/__init__.py says nothing"


@pytest.mark.parametrize("room", ROOMS)
def test_public_function_or_class_has_a_docstring(room: str) -> None:
    silent = [
        f"{installed(path)}:{node.lineno} {node.name}"
        for path in modules(room)
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if not ast.get_docstring(node) and "overload" not in map(ast.unparse, node.decorator_list)
    ]
    assert not silent, "\n".join(silent)


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in SHELL_FOLDERS])
def test_modules_outside_the_beam_shell_need_only_the_base_install(room: str) -> None:
    wrong = []
    for path in modules(room):
        for name, line, at_import in imports(path):
            if is_standard(name) or is_any(
                name, {"recordmill"} | BASE | FRAMEWORKS.get(room, set())
            ):
                continue
            for_tensorflow = {room, installed(path).as_posix()} & TENSORFLOW
            if (
                is_any(name, SHELL)
                or at_import
                or (is_any(name, {"tensorflow", "keras"}) and not for_tensorflow)
            ):
                wrong.append(f"{installed(path)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


SHARED = {  # what several modules have alike, since a table or a caller finds it there by its name
    "add_parser": "each command's flags",
    "run": "each command",
    "main": "each program",
}
# what says how a thing came about, or how it stands to another, and not what it is
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
    """Yields the public functions and classes of a module; constants of several modules may have
    one name.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_public_name_is_defined_in_one_module() -> None:
    places = defaultdict(set)
    for path in _modules():
        for name in _public(parsed(path)):
            places[name].add(installed(path).as_posix())
    twice = {
        name: sorted(found)
        for name, found in places.items()
        if len(found) > 1 and name not in SHARED
    }
    assert not twice, "\n".join(
        f"{name}: {', '.join(found)}" for name, found in sorted(twice.items())
    )


def test_modules_are_named_by_nouns() -> None:
    wrong = [
        installed(path).as_posix() for path in all_modules() if set(path.stem.split("_")) & NO_NOUNS
    ]
    assert not wrong, "\n".join(wrong)


def _documented() -> Iterator[tuple[Path, ast.AST, str]]:
    """Yields (module, definition, docstring) of all that has a docstring."""
    for path in _modules():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield path, node, ast.get_docstring(node) or ""


def _section(text: str, title: str) -> list[str]:
    """Returns the names that a section of a docstring describes."""
    lines = re.search(rf"(?m)^{title}:\n((?: .*\n?|\n(?= ))+)", text)
    return re.findall(r"(?m)^    \**(\w+): ", lines[1]) if lines else []


def test_docstring_sections_list_existing_parameters_and_fields() -> None:
    wrong = []
    for path, node, text in _documented():
        if isinstance(node, ast.FunctionDef):
            names = {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
            described = _section(text, "Args")
        elif isinstance(node, ast.ClassDef) and not node.bases:
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            names |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            names |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
            described = [*_section(text, "Args"), *_section(text, "Attributes")]
        else:
            continue
        wrong += [
            f"{installed(path)}: {node.name}: {name}" for name in described if name not in names
        ]
    assert not wrong, "\n".join(sorted(set(wrong)))


# words of other libraries and of files, and examples
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
    known = {word for text in code for word in re.findall(r"\w+", text)} | {
        path.stem for path in _modules()
    }
    prose = [(path, text) for path, _, text in _documented()]
    prose += [(path, comment) for path in _modules() for comment in _comments(path)]
    wrong = [
        f"{installed(path)}: `{name}`"
        for path, text in prose
        for name in re.findall(r"`([A-Za-z_]\w*)`", text)
        if name not in known | FOREIGN
    ]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_arguments_and_fields_are_described_in_sections() -> None:
    """A phrase such as `path: the file.` in prose would become stale unseen."""
    wrong = []
    for path, node, text in _documented():
        if isinstance(node, ast.Module):
            continue
        names = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
        names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        body = re.split(
            r"(?m)^(?:Args|Attributes|Returns|Raises|Yields|Examples?|Notes?):$|^>>>", text
        )[0]
        wrong += [
            f"{installed(path)}: {node.name}: {name}:"
            for name in re.findall(r"(?:^|\. |\n)([a-z_]+): ", body)
            if name in names
        ]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_module_named_in_a_docstring_exists() -> None:
    known = {dotted(path).removeprefix("recordmill.") for path in _modules()} | set(ROOMS)
    wrong = []
    for path, _, text in _documented():
        for name in re.findall(r"`((?:[a-z_]+\.)+\w+)`", text):
            parts = name.split(".")
            if parts[0] in FOLDERS and not known & {
                name,
                ".".join(parts[:-1]),
                ".".join(parts[:-2]),
            }:
                wrong.append(f"{installed(path)}: `{name}`")
    assert not wrong, "\n".join(sorted(set(wrong)))


# of `os` and `os.path`, what asks for no file
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
# of pathlib's methods, those that ask the file system; str has a `replace`, too, which takes two
# arguments
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
OPENERS = {"LockFile", "Image", "archive"}  # whose `open` is none of pathlib's
MODULES = {"fcntl", "fileinput", "glob", "mmap", "shutil", "tempfile"}
OF_LIBRARIES = {
    "OSFile",
    "memory_map",
    "memmap",
    "open_memmap",
    "fromfile",
    "tofile",
    "FileIO",
}  # others'
# what is no storage: files of the installation, the machine and the process
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


def _touches(path: Path) -> Iterator[tuple[int, str]]:
    """(line, what) of each place that would open, ask for, or change a file."""
    tree = parsed(path)
    own = {
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
            yield from _called(node, own)


def _is_touching(node: ast.Attribute) -> bool:
    allowed = {"os": OF_OS, "os.path": OF_PATH}.get(ast.unparse(node.value))
    if allowed is not None:
        return node.attr not in allowed
    return node.attr in OF_LIBRARIES or ast.unparse(node) in ("io.open", "np.load", "np.save")


def _called(node: ast.Call, own: set[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node.func, ast.Name):
        if node.func.id == "open" and "open" not in own:
            yield node.lineno, "open"
    elif isinstance(node.func, ast.Attribute):
        whole = ast.unparse(node.func)
        if whole.split(".")[0] in own:
            return
        replaces = node.func.attr == "replace" and len(node.args) == 1 and not node.keywords
        if (
            replaces
            or node.func.attr in OF_PATHS
            or (node.func.attr == "open" and whole.split(".")[0] not in OPENERS)
        ):
            yield node.lineno, f"{whole}()"


@pytest.mark.parametrize(
    "path", _modules_outside_storage(), ids=lambda path: installed(path).as_posix()
)
def test_module_outside_storage_touches_no_files(path: Path) -> None:
    name = installed(path).as_posix()
    found = [f"{name}:{line}: {what}" for line, what in _touches(path)]
    assert bool(found) == (name in NO_STORAGE), found or f"{name} need not be excepted any more"
