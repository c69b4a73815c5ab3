"""The code blocks of README and docs run, and print the shown output."""

import re
import runpy
from pathlib import Path

import pytest
from kit.pages import replay, reruns, write_rides

import recordmill
from recordmill.checks.rules import Rules, read_rules

ROOT = Path(__file__).resolve().parents[2]
# By page: (required packages, minimum number of occurrences of each beginning of a code block or
# example). The minimum detects a page that lost its examples.
PAGES: dict[str, tuple[list[str], dict[str, int]]] = {
    "reading": (["tensorflow", "duckdb", "pandas"], {"```console": 9, "\n>>> ": 21}),
    "statistics": ([], {"```console": 1, "\n>>> ": 5}),
    "training": (["keras", "tensorflow"], {"\n>>> ": 16}),
    "growing": ([], {"\n>>> ": 15}),
    "checks": ([], {"```console": 2}),
    "report": ([], {}),
    "coming-from": (["tensorflow_transform", "tensorflow_datasets"], {"```python": 14}),
    "transform": (["tensorflow_transform", "keras"], {"```python": 5}),
}
LONG = ("checks", "transform")


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.sweep if page in LONG else ()) for page in PAGES]
)
def test_code_blocks_of_a_page_print_the_shown_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    packages, blocks = PAGES[page]
    for package in packages:
        pytest.importorskip(package, reason=f"the page uses {package}")
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert all(text.count(beginning) >= count for beginning, count in blocks.items())
    monkeypatch.chdir(tmp_path)
    assert replay(text) == text


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the data that README and the pages use.

    Contains rides.csv, samples in local/raw, and the results of run_local.sh for two of the
    samples.
    """
    pytest.importorskip("sklearn", reason="the samples are scikit-learn's")
    folder = tmp_path_factory.mktemp("samples")
    make = runpy.run_path(str(ROOT / "examples" / "make_samples.py"))
    for kind in ("digits", "tables"):
        make[kind](folder / "local" / "raw" / kind)
    write_rides(folder)
    raw, out, tables = (folder / "local" / name for name in ("raw", "out", "read"))
    recordmill.build(raw / "digits", out / "digits", splits="train=0.9,validation=0.1")
    recordmill.build(raw / "tables" / "wine.csv", out / "wine", label="target")
    for kind in ("parquet", "npy"):
        recordmill.read(out / "wine", tables / "wine" / kind, to=kind)
    return folder


def test_code_blocks_of_the_building_pages_print_the_shown_output(
    samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tensorflow", "duckdb"):
        pytest.importorskip(module, reason=f"the pages use {module}")
    monkeypatch.chdir(samples)
    for page in ("README.md", "docs/getting-started.md", "docs/building.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert replay(text) == text, page
    # These samples describe the packages that are installed here, unlike the samples of the page.
    make = runpy.run_path(str(ROOT / "examples" / "make_samples.py"))
    make["texts"](samples / "local" / "raw" / "texts")
    make["packages"](samples / "local" / "raw" / "packages.jsonl")
    runs = reruns((ROOT / "docs" / "building.md").read_text(encoding="utf-8"))
    assert [command.split()[1] for command, _, _ in runs] == ["build", "build", "build"]
    for command, expected, lines in runs:
        assert {*expected} <= {*lines}, command  # packages may add notes


def test_rules_of_the_checks_page_are_valid(tmp_path: Path) -> None:
    (block,) = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "checks.md").read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "rules.yaml").write_text(block)
    rules = read_rules(tmp_path / "rules.yaml")
    untouched = {"source"}
    for name, default in vars(Rules()).items():
        assert name in untouched or getattr(rules, name) != default or name == "drift", name


def test_wrong_output_in_a_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong_page = """\
```python
>>> 2 + 1
4
>>> {}["a"]
```

```console
$ echo one in 7.5 s
two
```
"""
    expected = """\
```python
>>> 2 + 1
3
>>> {}["a"]
Traceback (most recent call last):
  ...
KeyError: 'a'
```

```console
$ echo one in 0.1 s
one in 0.1 s
```
"""
    assert replay(wrong_page) == expected
