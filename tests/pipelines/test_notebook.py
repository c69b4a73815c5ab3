"""Builds, reads and data sets work and display well in a notebook."""

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
    "recordmill.build({'x': [4]}, 'set', overwrite=True, runner='FnApiRunner')\nprint(len(recordmill.open('set')), os.listdir('temporary'))",
    "print([name for name in sys.modules if name.startswith('apache_beam.runners.interactive.')])",
]


def execute(notebook: Any, folder: Path) -> list[list[Any]]:
    """Runs a notebook in a folder. Returns the outputs of each code cell."""
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env={**os.environ, "IPYTHONDIR": str(folder / "ipython")})
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def result(cell: list[Any]) -> dict[str, str]:
    """Returns the value of a cell's last expression by MIME type."""
    data: dict[str, str] = next(
        output["data"] for output in cell if output["output_type"] == "execute_result"
    )
    return data


def streams(cell: list[Any]) -> str:
    return "".join(output["text"] for output in cell if output["output_type"] == "stream")


def test_builds_reads_and_data_sets_display_in_a_kernel(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    outputs = execute(notebook, tmp_path)
    progress, built, converted, opened, files = (
        streams(outputs[2]),
        *(result(outputs[cell]) for cell in (2, 3, 4, 6)),
    )
    assert "planning" in progress or "reading" in progress, progress
    # No line is sent twice in a row.
    assert all(line != next_line for line, next_line in itertools.pairwise(progress.split("\r"))), (
        progress
    )
    assert "set: train 3 records" in built["text/plain"]
    assert "<td>train</td><td>3</td>" in built["text/html"]
    assert f"<td>{Path('table/train-00000-of-00001.csv')}</td>" in converted["text/html"]
    assert "<td>x</td><td>int64</td>" in opened["text/html"]
    assert "inferred when it is needed" in files["text/html"]
    for display in (built, converted, opened):  # names and values from files are escaped
        assert "&lt;script&gt;" in display["text/html"]
        assert "<script" not in display["text/html"]
    assert streams(outputs[7]) == "1 []\n"  # a second build leaves no temporary files
    # Beam's modules for notebooks are not loaded. They fail with newer versions of pandas.
    assert streams(outputs[8]) == "[]\n"


def test_notebook_of_the_documentation_shows_current_output(tmp_path: Path) -> None:
    notebook = nbformat.read(PAGE, as_version=4)
    expected = [displayed(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(map(bool, expected)) > 5
    assert [displayed(cell) for cell in execute(notebook, tmp_path)] == expected
    # A second run in the same folder shows the same.
    assert [displayed(cell) for cell in execute(notebook, tmp_path)] == expected


def displayed(outputs: list[Any]) -> list[Any]:
    data = [output.get("data") or output.get("text") for output in outputs]
    return [
        re.sub(
            r"[\d.]+ (B|KiB)",
            "some",
            str(sorted(value.items()) if isinstance(value, dict) else value),
        )
        for value in data
    ]
