"""Builds, reads and what they show inside a real kernel, as an executed notebook holds it."""

import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytestmark = pytest.mark.sweep

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first-data-set.ipynb"
EVIL = "<script>alert(1)</script>"
CELLS = [
    "import recordmill, tempfile, glob, os, sys",
    "tempfile.tempdir = os.path.abspath('temporary'); os.mkdir('temporary')",
    f"built = recordmill.build({{'x': [1, 2, 3], {EVIL!r}: ['a', {EVIL!r}, 'c']}}, 'set', quiet=False)\nbuilt",
    "read = recordmill.read('set', 'table', to='csv', quiet=False)\nread",
    "ds = recordmill.open('set')\nds",
    "ds[0:3]",
    "files = recordmill.open('set/data-*/*.tfrecord')\nfiles",
    "recordmill.build({'x': [4]}, 'set', overwrite=True)\nprint(len(recordmill.open('set')), os.listdir('temporary'))",
    "print([name for name in sys.modules if name.startswith('apache_beam.runners.interactive.')])",
]


def execute(notebook: Any, folder: Path) -> list[list[Any]]:
    """Run the notebook in the folder; gives the outputs of each cell that has code."""
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "IPYTHONDIR": str(folder / "ipython")})
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    return execute(notebook, tmp_path_factory.mktemp("notebook"))


def result(cell: list[Any]) -> dict[str, str]:
    """What the cell's last expression shows, by MIME type."""
    found: dict[str, str] = next(output["data"] for output in cell if output["output_type"] == "execute_result")
    return found


def streams(cell: list[Any]) -> str:
    return "".join(output["text"] for output in cell if output["output_type"] == "stream")


def test_a_build_in_a_kernel_shows_its_progress_and_its_result(outputs: list[list[Any]]) -> None:
    said, shown = streams(outputs[2]), result(outputs[2])
    assert "planning" in said or "reading" in said, said
    lines = said.split("\r")
    assert all(line != after for line, after in itertools.pairwise(lines)), said  # none is sent again
    assert "set: train 3 records" in shown["text/plain"]
    assert "<td>train</td><td>3</td>" in shown["text/html"]


def test_a_read_in_a_kernel_shows_its_files(outputs: list[list[Any]]) -> None:
    shown = result(outputs[3])
    assert f"<td>{Path('table/train-00000-of-00001.csv')}</td>" in shown["text/html"]


def test_data_sets_show_their_features(outputs: list[list[Any]]) -> None:
    assert "<td>x</td><td>int64</td>" in result(outputs[4])["text/html"]
    assert "inferred when it is needed" in result(outputs[6])["text/html"]


def test_names_and_values_are_text_in_what_is_shown(outputs: list[list[Any]]) -> None:
    """A name or a value that a file holds never becomes HTML of the notebook."""
    shown = [result(outputs[cell])["text/html"] for cell in (2, 3, 4)]
    assert all("&lt;script&gt;" in html for html in shown)
    assert not any("<script" in html for html in shown)


def test_a_second_build_leaves_nothing_behind(outputs: list[list[Any]]) -> None:
    assert streams(outputs[7]) == "1 []\n"


def test_beam_s_notebook_parts_are_not_loaded(outputs: list[list[Any]]) -> None:
    """They import `apache_beam.dataframe`, which newer versions of pandas break."""
    assert streams(outputs[8]) == "[]\n"


@pytest.mark.sweep
def test_the_notebook_of_the_documentation_shows_what_it_gives_today(tmp_path: Path) -> None:
    """Sizes apart, which depend on the versions of the libraries that write files."""
    notebook = nbformat.read(PAGE, as_version=4)
    told = [shown(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(map(bool, told)) > 5
    assert [shown(cell) for cell in execute(notebook, tmp_path)] == told


def shown(cell: list[Any]) -> list[Any]:
    data = [output.get("data") or output.get("text") for output in cell]
    return [
        re.sub(r"[\d.]+ (B|KiB)", "some", str(sorted(one.items()) if isinstance(one, dict) else one)) for one in data
    ]
