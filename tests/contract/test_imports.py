"""Each command loads only the packages that it needs.

`--help` loads no heavy package. Local reads and builds load neither Beam nor TensorFlow.
"""

import json
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from kit.files import tfrecord_bytes
from kit.runs import run_python
from rooms import (
    FOLDERS,
    PACKAGE,
    ROOT,
    all_modules,
    folder_of,
    imports,
    is_any,
    is_standard,
    module_name,
)

import recordmill

HEAVY = ("numpy", "pyarrow", "PIL", "apache_beam", "tensorflow")


# A command and its function in Python need their options. `test_help_loads_nothing_heavy` proves
# that these modules are light.
LIGHT = {"recordmill.base.arguments", "recordmill.options"}


def test_modules_of_the_command_line_import_only_the_standard_library_and_options() -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted([*PACKAGE.glob("*.py"), *folder_of("commands").glob("*.py")])
        for name, line, at_import in imports(path)
        if at_import
        and not is_standard(name)
        and not is_any(name, LIGHT)
        and is_any(
            name,
            {"recordmill." + folder for folder in FOLDERS if folder != "commands"} | set(HEAVY),
        )
    ]
    assert not problems, "\n".join(problems)


def modules_after(code: str, *, blocked: tuple[str, ...] = ()) -> set[str]:
    """Returns the modules that a fresh interpreter has loaded after it ran the code.

    Args:
        code: The code to run.
        blocked: Modules that cannot be imported, and are not returned.
    """
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in blocked), code]
    lines += [
        "import json",
        "print(json.dumps([name for name, module in sys.modules.items() if module is not None]), file=sys.__stdout__)",
    ]
    process = run_python("-c", "\n".join(lines), check=False, timeout=300)
    assert process.returncode == 0, process.stderr[-2000:]
    return set(json.loads(process.stdout.splitlines()[-1]))


def import_all(folder: str) -> str:
    """Returns code that imports the modules of a folder.

    Modules for PyTorch, tf.data and tf.Transform are left out, because others import them on
    demand.
    """
    excluded_folders = [
        folder_of(room) for room in ("reader.torch", "reader.tensorflow", "transforms.tft")
    ]
    names = [
        module_name(path) for path in all_modules(folder) if path.parent not in excluded_folders
    ]
    return "import " + ", ".join(names)


def test_every_public_name_is_in_the_package() -> None:
    assert set(recordmill.__all__) | {"__version__"} <= set(dir(recordmill))
    for name in recordmill.__all__:
        value = getattr(recordmill, name)
        assert value.__name__ == name
        assert value.__module__.startswith("recordmill."), name


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


@pytest.mark.parametrize(
    "words", [["--help"], ["build", "--help-all"], ["read", "--help-all"]], ids=str
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    assert not modules_after(HELP.replace('["--help"]', repr(words))) & set(HEAVY)


LOAD_OPTIONS = """
import recordmill
from recordmill.options.calls import CALLS
calls = [call for call in CALLS.values() if call.is_command]
assert all(call.options for call in calls) and any(call.plugins for call in calls)
"""


def test_classes_of_options_load_nothing_heavy() -> None:
    """The code also loads the options of kinds and outputs, because the help shows them."""
    assert not modules_after(LOAD_OPTIONS) & set(HEAVY)


@pytest.mark.parametrize("command", ["head", "inspect", "read --dry-run", "build --out OUT"])
def test_commands_do_not_load_pandas(command: str, tmp_path: Path) -> None:
    (tmp_path / "one.tfrecord").write_bytes(
        tfrecord_bytes([b"\x0a\x0d\x0a\x0b\x0a\x01a\x12\x06\x1a\x04\x0a\x02\xac\x02"])
    )
    words = ["recordmill", *command.split(), str(tmp_path / "one.tfrecord")]
    words = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    loaded = modules_after(
        f"sys.argv = {words!r}\nfrom recordmill.__main__ import main\nassert main() == 0"
    )
    assert "pyarrow" in loaded
    assert "pandas" not in loaded


@pytest.mark.parametrize(
    "folder", [folder for folder in FOLDERS if folder not in ("transforms", "pipelines")]
)
def test_importing_a_folder_loads_neither_beam_nor_tensorflow(folder: str) -> None:
    loaded = modules_after(
        import_all(folder),
        blocked=(
            "apache_beam",
            "tensorflow",
            "tensorflow_transform",
            "tfx_bsl",
            "tensorflow_datasets",
        ),
    )
    assert f"recordmill.{folder}" in loaded


def test_build_in_this_process_works_without_beam_and_tensorflow(tmp_path: Path) -> None:
    code = f"""
import recordmill
built = recordmill.build({{"x": [1, 2], "y": ["a", "b"]}}, {str(tmp_path / "out")!r})
assert built.read == 2, built
added = recordmill.build({{"x": [3], "y": ["a"]}}, {str(tmp_path / "out")!r}, append=True)
assert added.records == {{"train": 3}}, added
"""
    loaded = modules_after(code, blocked=("apache_beam", "tensorflow"))
    assert "recordmill.building.local_build" in loaded


def test_build_of_a_table_loads_no_module_of_images(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x,y\n1,a\n2,b\n")
    words = ["recordmill", "build", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out")]
    loaded = modules_after(
        f"sys.argv = {words!r}\nfrom recordmill.__main__ import main\nassert main() == 0"
    )
    assert "recordmill.sources.csv.source" in loaded
    images = {name for name in loaded if name.startswith("recordmill.sources.images.")}
    assert images <= {"recordmill.sources.images.options"}


def test_modules_of_a_build_do_not_load_tensorflow() -> None:
    """Beam must not load it either, because TensorFlow delays a build by several seconds."""
    loaded = modules_after(import_all("pipelines") + "\n" + import_all("transforms"))
    assert "apache_beam" in loaded
    assert "tensorflow" not in loaded


def run_cli(*args: str, blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    code = "\n".join(
        [
            "import sys",
            *(f"sys.modules[{name!r}] = None" for name in blocked),
            "from recordmill.__main__ import main",
            f"sys.exit(main({list(args)!r}))",
        ]
    )
    return run_python("-c", code, check=False, timeout=300)


def test_build_without_google_clients_prints_no_warning(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("one\n")
    process = run_cli(
        "build",
        str(tmp_path / "x.txt"),
        "--out",
        str(tmp_path / "ds"),
        "--quiet",
        "--runner=FnApiRunner",
        blocked=("apitools",),
    )
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.sweep
def test_to_tf_without_tensorflow_names_the_extra_to_install(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n" + "1,2\n" * 20)
    process = run_cli(
        "build",
        "csv",
        str(tmp_path / "in.csv"),
        "--out",
        str(tmp_path / "out"),
        "--quiet",
        blocked=(),
    )
    assert process.returncode == 0, process.stderr
    code = f"""
import recordmill
try:
    recordmill.open({str(tmp_path / "out")!r}).to_tf()
except ImportError as error:
    assert "pip install " in str(error) and "[tf]" in str(error), error
else:
    raise SystemExit("to_tf() worked without TensorFlow")
"""
    modules_after(code, blocked=("tensorflow",))


@pytest.mark.sweep
def test_reads_import_no_slow_package(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": 1, "b": ["x"]}\n' * 20)
    shards, slow = (
        str(tmp_path / "shards"),
        {"scipy", "pandas", "PIL", "pyarrow.dataset", "pyarrow.compute"},
    )

    def slow_modules_of(*args: str) -> set[str]:
        return (
            modules_after(f"from recordmill.__main__ import main; assert main({list(args)!r}) == 0")
            & slow
        )

    slow_modules_of("build", "jsonl", str(tmp_path / "in.jsonl"), "--quiet", "--out", shards)
    assert not slow_modules_of("head", shards)
    slow.remove("pyarrow.compute")  # 60 ms
    assert not slow_modules_of(
        "read", shards, "--to", "parquet", "--quiet", "--out", str(tmp_path / "read")
    )
    assert not slow_modules_of("inspect", shards)


def test_windows_is_refused_with_a_clear_message() -> None:
    code = "import sys; sys.platform = 'win32'; import recordmill"
    process = run_python("-c", code, check=False, timeout=60)
    assert process.returncode != 0
    assert "Windows" in process.stderr
    assert "WSL" in process.stderr
    setup = (
        "import sys; sys.platform = 'win32'; sys.argv = ['setup.py', '--version']; "
        f"exec(open({str(ROOT / 'setup.py')!r}).read())"
    )
    process = run_python("-c", setup, check=False, timeout=60)
    assert process.returncode != 0
    assert "does not run on Windows" in process.stderr


def test_every_installed_program_exists() -> None:
    scripts = [
        entry
        for entry in entry_points(group="console_scripts")
        if entry.name.startswith("recordmill")
    ]
    assert {entry.name for entry in scripts} == {"recordmill", "recordmill-worker"}
    assert all(callable(entry.load()) for entry in scripts)
