"""A PyTorch run that is killed in mid-epoch goes on with exactly the batches of an unbroken run."""

import re
from pathlib import Path

import numpy as np
import pytest
from killed_training import killed_and_resumed
from kit import table_of
from made_data_set import mixed_rows, write_data_set

import recordmill
from recordmill.reader.dataset import open
from recordmill.schemas.feature import Feature, Schema

torch = pytest.importorskip("torch", reason="needs PyTorch: `.ci/torch` runs it")
pytest.importorskip("torchdata", reason="needs torchdata: `.ci/torch` runs it")

ROWS, BATCH, EPOCHS = 300, 32, 3
SCRIPT = f"""
import json, os, signal, sys
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
import recordmill

def main():
    out, folder, last = sys.argv[1:]
    saved, log = os.path.join(folder, "saved.pt"), open(os.path.join(folder, "log"), "a")
    torch.manual_seed(1)
    ds = recordmill.open(out, columns=["id", "matrix", "label"])
    batches = ds.to_torch({BATCH}, shuffle="global", seed=3, label="label")
    loader = StatefulDataLoader(batches, batch_size=None, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 1), torch.nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    epoch = step = 0
    if os.path.exists(saved):
        found = torch.load(saved)
        model.load_state_dict(found["model"])
        loader.load_state_dict(found["loader"])
        epoch, step = found["epoch"], found["step"]
    for epoch in range(epoch, {EPOCHS}):
        for x, y in loader:
            log.write(json.dumps([step, x["id"].tolist()]) + "\\n")
            log.flush()
            if step == int(last):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x["matrix"])[:, 0], y.float()).backward()
            optimizer.step()
            step += 1
            state = {{"model": model.state_dict(), "loader": loader.state_dict(), "epoch": epoch, "step": step}}
            torch.save(state, saved + ".new")
            os.replace(saved + ".new", saved)
    torch.save(model.state_dict(), os.path.join(folder, "end.pt"))

main()
"""


def test_a_killed_run_goes_on_with_the_batches_of_an_unbroken_one(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(ROWS)}, shards=3)
    ends = []
    for name, kills in (("unbroken", ()), ("killed", (4, 10, 17))):
        (tmp_path / name).mkdir()
        steps = killed_and_resumed(SCRIPT, out, tmp_path / name, kills)
        truth = open(out).batches(BATCH, shuffle="global", seed=3, epochs=EPOCHS)
        assert steps == {step: batch["id"].tolist() for step, batch in enumerate(truth)}
        ends.append(torch.load(tmp_path / name / "end.pt"))
    assert all(torch.equal(ends[0][weight], ends[1][weight]) for weight in ends[0])


# The block of docs/training.md that needs PyTorch runs, on the data set of the page


pytest.importorskip("torch", reason="needs PyTorch: `.ci/torch` runs it")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def test_the_block_of_the_page_runs(tmp_path: Path) -> None:
    schema = Schema(
        (*(Feature(name, "int64", (), True) for name in "ny"), Feature("words", "int64", (None,), True)), "y"
    )
    columns = {"n": range(300), "words": [list(range(i % 9)) for i in range(300)], "y": np.arange(300) % 2}
    table = table_of(columns, schema)
    ds = recordmill.open(write_data_set(tmp_path / "out", {"train": table}, schema))
    (block,) = re.findall(r"(?ms)^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))
    names = {"ds": ds, "recordmill": recordmill}
    exec(compile(block, "page", "exec"), names)
    assert names["epoch"] == 2
