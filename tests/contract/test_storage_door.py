"""Nothing outside storage/ touches a file: what the modules call, by their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from rooms import PACKAGE, ROOMS, installed, modules, parsed

# of `os` and `os.path`, what asks for no file
OF_OS = {"PathLike", "cpu_count", "environ", "fsdecode", "fsencode", "fspath", "getpid", "path", "register_at_fork"}
OF_OS |= {"kill", "sched_getaffinity", "strerror"}
OF_PATH = {"abspath", "basename", "commonpath", "dirname", "isabs", "join", "normpath", "relpath", "split", "splitext"}
# of pathlib's methods, those that ask the file system; str has a `replace`, too, which takes two arguments
OF_PATHS = {"chmod", "exists", "expanduser", "glob", "hardlink_to", "is_dir", "is_file", "is_symlink", "iterdir"}
OF_PATHS |= {"lchmod", "lstat", "mkdir", "owner", "read_bytes", "read_text", "readlink", "rename", "resolve", "rglob"}
OF_PATHS |= {"rmdir", "samefile", "stat", "symlink_to", "touch", "unlink", "write_bytes", "write_text"}
OPENERS = {"Folder", "LockFile", "Image", "archive"}  # whose `open` is none of pathlib's
MODULES = {"fcntl", "fileinput", "glob", "mmap", "shutil", "tempfile"}
OF_LIBRARIES = {"OSFile", "memory_map", "memmap", "open_memmap", "fromfile", "tofile", "FileIO"}  # others'
# what is no storage: files of the installation, the machine and the process
NO_STORAGE = {
    "__main__.py": "the end of the process",
    "base/compilation/digest.py": "the file that says which Numba is installed",
    "base/compilation/machine_code.py": "files of compiled kernels, beside the installed source",
    "base/compilation/numba_kernels.py": "Numba's own",
    "base/machine.py": "/sys/fs/cgroup, which says how many cores there are",
    "pipelines/remote/child_process.py": "the program that its process becomes, and the end of it",
    "commands/main.py": "the standard streams of the process",
    "reader/torch/workers.py": "a file without a name, which is memory that processes share",
    "records/writers/npy.py": "NumPy maps the arrays that a read wrote, for the user",
    "transforms/worker.py": "the program that its process becomes",
}


def _modules() -> Iterator[Path]:
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
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES | {"os"}:
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
        replaces = node.func.attr == "replace" and len(node.args) == 1 and not node.keywords
        if replaces or node.func.attr in OF_PATHS or (node.func.attr == "open" and whole.split(".")[0] not in OPENERS):
            yield node.lineno, f"{whole}()"


@pytest.mark.parametrize("path", _modules(), ids=lambda path: installed(path).as_posix())
def test_only_storage_touches_files(path: Path) -> None:
    name = installed(path).as_posix()
    found = [f"{name}:{line}: {what}" for line, what in _touches(path)]
    assert bool(found) == (name in NO_STORAGE), found or f"{name} need not be excepted any more"
