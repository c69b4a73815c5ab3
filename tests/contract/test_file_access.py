"""Only `storage` touches files. Five functions of `storage.files` read their bytes."""

import ast
import inspect

from rooms import all_modules, installed_path, parse_module

from recordmill.storage import files

OS = {"open", "listdir", "scandir", "walk", "mkdir", "makedirs", "rmdir", "remove", "unlink"}
OS |= {"rename", "replace", "link", "symlink", "truncate", "read", "write"}
PATHS = {"read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "rglob", "mkdir"}
PATHS |= {"unlink", "rmdir", "touch", "symlink_to", "hardlink_to"}
LIBRARIES = {"mmap", "shutil", "tempfile"}
# By module: the reason why it calls the operating system itself.
EXCEPTIONS = {
    "base/display.py": "the width of the terminal, which shutil knows",
    "base/machine.py": "files of the kernel, which have no size",
    "commands/main.py": "descriptors 0 to 2, which may be closed",
    "sources/parser/worker.py": "descriptor 0, which the user's function must not read",
}


def _calls(tree: ast.AST) -> set[str]:
    """Returns the calls of a module that touch a file."""
    calls = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, node.func.value
        library = owner.id if isinstance(owner, ast.Name) else ""
        opens = (library == "os" and name in OS) or (library == "io" and name == "open")
        if opens or library in LIBRARIES or name in PATHS:
            calls.add(f"{library}.{name}")
    return calls


def test_only_storage_accesses_files() -> None:
    calls_by_module = {
        installed_path(path).as_posix(): calls
        for path in all_modules()
        if installed_path(path).parts[0] != "storage" and (calls := _calls(parse_module(path)))
    }
    assert calls_by_module.keys() == EXCEPTIONS.keys(), calls_by_module


def test_only_five_functions_of_storage_read_bytes() -> None:
    names = {
        name
        for name, function in vars(files).items()
        if inspect.isfunction(function)
        and function.__module__ == files.__name__
        and "Bytes" in str(function.__annotations__)
    }
    # `start_range_read` only begins `read_range` earlier.
    names -= {"start_range_read"}
    assert names == {"read_range", "read_ranges", "read_spans", "read_blocks", "map_file"}
