"""Generated and checked texts are up to date.

These are the stub of the library, doctests, recipe, workflow and promises. No text contains merge
markers.
"""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rooms import ROOT, all_modules, module_name

import recordmill
from recordmill.base import native
from recordmill.base.library import make_stub, read_header

_SIDES = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)  # the marks of git
_KINDS = (".md", ".py", ".toml", ".yaml", ".yml", ".sh", ".ipynb", "")
_LEFT_OUT = {".git", ".venv", "build", "dist", "node_modules"}


def texts(folder: Path) -> list[Path]:
    paths = []
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            paths += (
                [] if path.name in _LEFT_OUT or path.name.endswith(".egg-info") else texts(path)
            )
        elif path.suffix in _KINDS and path.is_file():
            paths.append(path)
    return paths


def test_no_text_contains_merge_markers() -> None:
    paths = texts(ROOT)
    assert len(paths) > 300
    conflicts = [
        path for path in paths if _SIDES.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert conflicts == []


def modules_with_examples() -> list[str]:
    """Returns the names of the modules with examples."""
    return [module_name(path) for path in all_modules() if _has_example(path)]


def _has_example(path: Path) -> bool:
    return ">>> " in path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `shards`, the data set of ten records that examples open."""
    folder = tmp_path_factory.mktemp("examples")
    numbers = np.arange(10)
    columns = {
        "id": numbers,
        "size": (numbers / 2).astype(np.float32),
        "tokens": [[1] * (1 + number % 3) for number in numbers.tolist()],
        "animal": np.array([("cat", "dog")[number % 2] for number in numbers.tolist()]),
    }
    splits = "train=0.8,test=0.2"
    recordmill.build(columns, folder / "shards", label="animal", splits=splits)
    return folder


@pytest.mark.parametrize("name", modules_with_examples())
def test_doctests_of_a_module_pass(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(name)
    if '("shards"' in Path(str(module.__file__)).read_text(encoding="utf-8"):
        monkeypatch.chdir(request.getfixturevalue("example_folder"))
    result = doctest.testmod(module, extraglobs={"recordmill": recordmill})
    assert result.attempted, f"{name} shows >>> outside of docstrings"
    assert not result.failed, (
        f"{result.failed} of {result.attempted} examples in {name} fail; see above"
    )


def test_stub_of_the_library_follows_from_the_header() -> None:
    header = read_header((ROOT / "native" / "recordmill.h").read_text(encoding="utf-8"))
    assert Path(native.__file__).with_suffix(".pyi").read_text(encoding="utf-8") == make_stub(
        header
    ), "run native/make_stub.py"


def test_library_has_every_name_of_the_header() -> None:
    header = read_header((ROOT / "native" / "recordmill.h").read_text(encoding="utf-8"))
    names = {function.name for function in header.functions}
    names |= {*header.constants, *header.enums, *header.structs}
    assert names <= vars(native).keys(), "pip install -e ."


def test_recipe_and_citation_agree_with_the_package() -> None:
    yaml = pytest.importorskip("yaml", reason="the recipe is YAML")
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    recipe = yaml.safe_load((ROOT / ".ci" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (version,) = re.findall(r'(?m)^version = "(.+)"$', package)
    assert recipe["context"]["version"] == citation["version"] == version
    (block,) = re.findall(r"(?ms)^dependencies = \[\n(.*?)^\]$", package)
    (python,) = re.findall(r'(?m)^requires-python = "(.+?)"', package)
    expected = {f"python{python}"} | {
        requirement.lower() for requirement in re.findall(r'(?m)^  "(.+?)"', block)
    }
    assert {
        requirement.replace(" ", "").replace("python-isal", "isal")
        for requirement in recipe["requirements"]["run"]
    } == expected


def test_workflow_runs_the_tests_on_each_pinned_python() -> None:
    yaml = pytest.importorskip("yaml", reason="the workflow is YAML")
    path = ROOT / ".github" / "workflows" / "ci.yml"
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    pinned = sorted(path.stem for path in (ROOT / ".ci" / "constraints").glob("py3*.txt"))
    matrix = jobs["test"]["strategy"]["matrix"]
    assert sorted(f"py{version.replace('.', '')}" for version in matrix["python"]) == pinned
    assert {*matrix["os"]} == {*jobs["base"]["strategy"]["matrix"]["os"]}
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    classified = {*re.findall(r'"Programming Language :: Python :: (3\.\d+)"', package)}
    assert {*matrix["python"], *jobs["base"]["strategy"]["matrix"]["python"]} == classified
    commands = [step["run"] for step in jobs["test"]["steps"] if "run" in step]
    assert commands == ["./run_local.sh test"]


def test_commands_of_the_base_job_of_the_workflow_succeed(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="the workflow is YAML")
    path = ROOT / ".github" / "workflows" / "ci.yml"
    steps = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]["base"]["steps"]
    install, *commands = [step["run"] for step in steps if "run" in step]
    assert install == "pip install ."
    assert sum(command.startswith("recordmill ") for command in commands) >= 2
    script = [f'recordmill() {{ {sys.executable} -m recordmill "$@"; }}', *commands]
    subprocess.run(["bash", "-ec", "\n".join(script)], cwd=tmp_path, check=True)


PAGE = ROOT / "docs" / "promises.md"
ROWS = re.findall(r"(?m)^\| (.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"))
PROMISES = [(promise, tests) for promise, tests in ROWS if tests != "tests"]


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=lambda cell: cell[:40])
def test_promise_names_existing_test_files(promise: str, tests: str) -> None:
    assert re.fullmatch(r"`[\w/]+\.py`(, `[\w/]+\.py`)*", tests)
    for name in re.findall(r"`(.+?)`", tests):
        assert "def test_" in (ROOT / "tests" / name).read_text(encoding="utf-8"), name


def test_decision_of_architecture_names_existing_test_files() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = page.partition("## Decisions")[2].partition("## Glossary")[0]
    decisions = re.findall(r"(?ms)^\* \*\*(.+?)(?=^\* \*\*|\Z|^\[)", section)
    assert len(decisions) > 20
    for decision in decisions:
        tests = re.findall(r"`([\w/]+/test_\w+\.py)`", decision)
        assert tests, decision
        for name in tests:
            assert "def test_" in (ROOT / "tests" / name).read_text(encoding="utf-8"), name


def test_answers_of_architecture_name_existing_code() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = page.partition("## Where to look")[2].partition("\n## ")[0]
    places = re.findall(r"`([\w/]+\.py)`(?:: `([\w.]+)`)?", section)
    assert len(places) > 15
    for path, name in places:
        folder = ROOT if path.startswith("pipelines/") else ROOT / "src" / "recordmill"
        code = (folder / path).read_text(encoding="utf-8")
        for part in filter(None, name.split(".")):
            assert re.search(rf"(def|class) {part}\b", code), (path, part)


def test_page_of_promises_is_parsed() -> None:
    assert len(PROMISES) > 50
