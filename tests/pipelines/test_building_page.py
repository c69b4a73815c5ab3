"""README's first screen, and the pages on getting started and on building: their blocks run on the sample data, and
print what stands below them.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pages import replay, reruns

import recordmill

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/getting-started.md", "docs/building.md")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with README's rides.csv, samples in local/raw, and what run_local.sh makes of two of them."""
    pytest.importorskip("sklearn", reason="the samples are scikit-learn's")
    folder = tmp_path_factory.mktemp("samples")
    make = runpy.run_path(str(ROOT / "examples" / "make_samples.py"))
    for kind in ("digits", "tables"):
        make[kind](folder / "local" / "raw" / kind)
    rides = (f"{n % 60 + 3},{('UA', 'B6', 'EV')[n % 4 % 3]}\n" for n in range(1000))
    (folder / "rides.csv").write_text("fare,carrier\n" + "".join(rides))
    raw, out, read = (folder / "local" / name for name in ("raw", "out", "read"))
    recordmill.build(raw / "digits", out / "digits", splits="train=0.9,validation=0.1")
    recordmill.build(raw / "tables" / "wine.csv", out / "wine", label="target")
    for kind in ("parquet", "npy"):
        recordmill.read(out / "wine", read / "wine" / kind, to=kind)
    return folder


def test_every_block_prints_what_the_pages_say(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tensorflow", "duckdb"):
        pytest.importorskip(module, reason=f"the pages use {module}")
    monkeypatch.chdir(samples)
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert replay(text) == text, page
    make = runpy.run_path(str(ROOT / "examples" / "make_samples.py"))  # of the packages that are installed here
    make["texts"](samples / "local" / "raw" / "texts")
    make["packages"](samples / "local" / "raw" / "packages.jsonl")
    recordmill.read("local/shards/wine", "local/tables/wine", to="parquet", overwrite=True)
    runs = reruns((ROOT / "docs" / "building.md").read_text(encoding="utf-8"))
    assert [command.split()[1] for command, _, _ in runs] == ["build", "head", "build", "inspect", "build", "build"]
    for command, said, printed in runs:
        assert {*said} <= {*printed}, command  # a package may bring a file that is worth a note
