"""Who imports whom: folders import only those above them, and each command loads only what it needs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("schemas", "storage", "sources", "records", "shards", "reader", "transforms", "pipelines")
BASE = {"numpy", "pyarrow", "numba", "llvmlite", "PIL", "tensorflow_metadata", "google.protobuf"}  # what the base install has
TENSORFLOW = {"reader", "records/ragged.py"}  # may import it in functions: tf.data, and a ragged value that becomes a tf.RaggedTensor when asked
SHELL = {"apache_beam", "tensorflow_transform", "tfx_bsl"}  # the Beam shell's own, in SHELL_FOLDERS only
SHELL_FOLDERS = ("transforms", "pipelines")
HEAVY = ("numpy", "pyarrow", "numba", "PIL", "apache_beam", "tensorflow")


def may_import(folder: str) -> set[str]:
    """The folders above this one; the reader is a leaf, so that a build never depends on how its output is read."""
    above = set(LAYERS[: LAYERS.index(folder) + 1])
    return above - {"reader"} if folder in SHELL_FOLDERS else above


def modules(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(dotted name, line, whether it is imported when the module is) of every import, in functions too; not those for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from _imports(tree, True)


def _imports(node: ast.AST, at_import: bool) -> Iterator[tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from ((name, line, False) for name, line, _ in _imports(child, False) if name.startswith("recordmill"))
        elif isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: a relative import; write recordmill.…"
            module = child.module or ""
            yield from ((f"{module}.{alias.name}" if module == "recordmill" else module, child.lineno, at_import) for alias in child.names)
        else:
            yield from _imports(child, at_import and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def is_any(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def is_standard(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("folder", LAYERS)
def test_a_folder_imports_only_those_above_it(folder: str) -> None:
    allowed = {f"recordmill.{name}" for name in may_import(folder)}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules(folder)
        for name, line, _ in imports(path)
        if (is_any(name, {"recordmill"}) and not is_any(name, allowed)) or is_any(name, set(LAYERS))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", [name for name in LAYERS if name not in SHELL_FOLDERS])
def test_outside_the_beam_shell_modules_need_the_base_install_only(folder: str) -> None:
    """TensorFlow and optional packages may be imported inside functions; Beam not even there."""
    wrong = []
    for path in modules(folder):
        for name, line, at_import in imports(path):
            if is_standard(name) or is_any(name, {"recordmill"} | BASE):
                continue
            for_tensorflow = {folder, path.relative_to(ROOT).as_posix()} & TENSORFLOW
            if is_any(name, SHELL) or at_import or (is_any(name, {"tensorflow"}) and not for_tensorflow):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_command_line_s_modules_import_the_standard_library_only() -> None:
    """`recordmill --help` is quick because nothing else is loaded; the commands import the rest when they run."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / "src/recordmill").rglob("*.py"))
        for name, line, at_import in imports(path)
        if at_import and not is_standard(name) and is_any(name, {"recordmill." + layer for layer in LAYERS} | set(HEAVY))
    ]
    assert not wrong, "\n".join(wrong)


def loaded_after(code: str, *, blocked: tuple[str, ...] = ()) -> set[str]:
    """The modules of interest that a fresh interpreter has loaded after running the code; blocked ones can't be imported there."""
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in blocked), code]
    lines += ["import json", "print(json.dumps([name for name, module in sys.modules.items() if module is not None]), file=sys.__stdout__)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return set(json.loads(done.stdout.splitlines()[-1]))


def import_all(folder: str) -> str:
    names = [f"recordmill.{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}".removesuffix(".__init__") for path in modules(folder)]
    return "import " + ", ".join(names)


HELP = """
import contextlib, io
import recordmill, recordmill.__main__
with contextlib.redirect_stdout(io.StringIO()) as text:
    try:
        recordmill.__main__.main(["--help"])
    except SystemExit as done:
        assert not done.code, done.code
assert "build" in text.getvalue() and "read" in text.getvalue(), text.getvalue()
"""


def test_help_loads_nothing_heavy() -> None:
    assert not loaded_after(HELP) & set(HEAVY)


@pytest.mark.parametrize("folder", ["schemas", "storage", "sources", "records", "shards", "reader"])
def test_importing_a_folder_leaves_beam_and_tensorflow_unloaded(folder: str) -> None:
    loaded = loaded_after(import_all(folder), blocked=("apache_beam", "tensorflow", "tensorflow_transform", "tfx_bsl", "tensorflow_datasets"))
    assert f"recordmill.{folder}" in loaded


def test_a_build_leaves_tensorflow_unloaded() -> None:
    """Beam itself must not bring it in either: a build that loads TensorFlow starts several seconds later."""
    loaded = loaded_after(import_all("pipelines") + "\n" + import_all("transforms"))
    assert "apache_beam" in loaded
    assert "tensorflow" not in loaded


def run_cli(*args: str, blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    code = "\n".join(
        ["import sys", *(f"sys.modules[{name!r}] = None" for name in blocked), "from recordmill.__main__ import main", f"sys.exit(main({list(args)!r}))"]
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


def test_a_build_without_beam_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,2\n")
    done = run_cli("build", "csv", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out"), blocked=("apache_beam",))
    assert done.returncode != 0
    assert 'pip install "recordmill[beam]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/_manifests").exists()


def test_tf_data_without_tensorflow_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n" + "1,2\n" * 20)
    built = run_cli("build", "csv", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out"), "--quiet", blocked=())
    assert built.returncode == 0, built.stderr
    code = f"""
import recordmill
try:
    recordmill.open({str(tmp_path / "out")!r}).to_tf()
except ImportError as error:
    assert 'pip install "recordmill[tf]"' in str(error), error
else:
    raise SystemExit("to_tf() worked without TensorFlow")
"""
    loaded_after(code, blocked=("tensorflow",))


def test_reading_needs_neither_beam_nor_tensorflow(tmp_path: Path) -> None:
    """The same as the clean environment of .ci/run, in short: the packages are there and can't be imported."""
    (tmp_path / "in.csv").write_text("a,b\n" + "1,x\n" * 20)
    out = str(tmp_path / "out")
    assert run_cli("build", "csv", str(tmp_path / "in.csv"), "--out", out, "--quiet", blocked=("tensorflow",)).returncode == 0
    blocked = ("apache_beam", "tensorflow", "tensorflow_transform", "tfx_bsl")
    for args in (
        ["head", out],
        ["inspect", out],
        ["verify", out],
        ["read", out, "--out", str(tmp_path / "parquet"), "--to", "parquet"],
        ["read", out, "--out", str(tmp_path / "npy"), "--to", "npy"],
    ):
        done = run_cli(*args, blocked=blocked)
        assert done.returncode == 0, (args, done.stderr)
    assert list((tmp_path / "parquet").rglob("*.parquet"))
    assert list((tmp_path / "npy").rglob("*.npy"))


def test_windows_is_refused_with_a_clear_word() -> None:
    code = "import sys; sys.platform = 'win32'; import recordmill"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "Windows" in done.stderr
    assert "WSL" in done.stderr
    setup = f"import sys; sys.platform = 'win32'; sys.argv = ['setup.py', '--version']; exec(open({str(ROOT / 'setup.py')!r}).read())"
    done = subprocess.run([sys.executable, "-c", setup], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "does not run on Windows" in done.stderr
