"""PyTorch's workers yield batches in the order of `batches()`, also after a kill.

The batches are plain, bucketed or packed, or skip records.
"""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import ROOT
from kit.data_sets import mixed_rows, window_options, write_data_set
from kit.image_samples import encode_image

import recordmill
from recordmill.base.errors import UsageError
from recordmill.reader import Bucketed, Packed, Padded
from recordmill.reader.dataset import Dataset, open
from recordmill.schemas.feature import Feature, Schema

torch = pytest.importorskip("torch", reason="needs PyTorch: `.ci/torch` runs it")
stateful = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="needs torchdata: `.ci/torch` runs it"
)
from torch.utils.data import DataLoader  # noqa: E402

from recordmill.reader.torch.tensors import RaggedRows  # noqa: E402

ROWS = 200
# The records with damaged images. Ten of them follow each other.
BAD = (
    0,
    7,
    8,
    9,
    31,
    32,
    33,
    34,
    35,
    36,
    37,
    38,
    39,
    40,
    120,
    199,
)
LENGTHS = [int(n) for n in np.random.default_rng(5).gamma(2, 6, ROWS)]
BUCKETED: dict[str, Any] = {"collate": {"tokens": Bucketed((4, 8, 16), steps=3)}}
PACKED: dict[str, Any] = {"collate": {"tokens": Packed(80)}}
SKIP: dict[str, Any] = {"on_bad": "skip", "decode_images": (4, 4)}
VARIANTS: list[dict[str, Any]] = [{}, BUCKETED, PACKED, SKIP]
MODES: list[Any] = [False, "window", "global"]
pytestmark = pytest.mark.filterwarnings("ignore:epoch .* skipped")


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    good = encode_image("PNG")
    schema = Schema(
        (
            Feature("id", "int64", (), True),
            Feature("tokens", "int64", (None,), True),
            Feature("image", "bytes", (), True),
        )
    )
    columns = {
        "id": range(ROWS),
        "tokens": [[1000 * i + item + 1 for item in range(LENGTHS[i])] for i in range(ROWS)],
        "image": [good[:60] if row in BAD else good for row in range(ROWS)],
    }
    return open(
        write_data_set(
            tmp_path_factory.mktemp("torch") / "out", {"train": columns}, schema, shards=3
        ),
        threads=2,
    )


def loader(batches: Any, workers: int) -> Any:
    return stateful.StatefulDataLoader(batches, batch_size=None, num_workers=workers)


def plain(value: Any) -> Any:
    """Returns a batch of this library or of PyTorch as Python values.

    Leaves out the images.
    """
    if isinstance(value, dict):
        return {name: plain(column) for name, column in value.items() if name != "image"}
    if isinstance(value, RaggedRows):
        ends = value.row_splits.tolist()
        return [value.values[begin:end].tolist() for begin, end in pairwise(ends)]
    return [row.tolist() for row in value] if hasattr(value, "row_splits") else value.tolist()


def plain_batches(batches: Any) -> list[Any]:
    return [plain(batch) for batch in batches]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize("variant", [{}, BUCKETED, PACKED])
def test_torch_workers_yield_the_batches_of_numpy(
    ds: Dataset, variant: dict[str, Any], shuffle: Any, workers: int
) -> None:
    options: dict[str, Any] = {
        "shuffle": shuffle,
        "seed": 5,
        **window_options(shuffle, 2000),
        **variant,
    }
    expected = plain_batches(ds.batches(8, **options, epochs=4))
    batch_loader = DataLoader(
        ds.to_torch(8, **options, epochs=2), batch_size=None, num_workers=workers
    )
    assert plain_batches(batch_loader) + plain_batches(batch_loader) == expected
    if variant is PACKED:
        with pytest.raises(TypeError, match="packed"):
            len(ds.to_torch(8, **options))
    else:
        assert len(ds.to_torch(8, **options, epochs=2)) == len(expected) // 2
    if variant is BUCKETED:
        assert {len(batch["tokens"][0]) for batch in expected} > {4, 8, 16}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_stateful_loader_resumes_at_every_step(
    ds: Dataset, variant: dict[str, Any], workers: int
) -> None:
    options: dict[str, Any] = {"shuffle": "global", "seed": 2, "epochs": 2, **variant}
    batch_loader = loader(ds.to_torch(20, **options), workers)
    expected = plain_batches(batch_loader) + plain_batches(batch_loader)
    iteration = len(expected) // 2
    for step in range(0, iteration + 1, 1 + 2 * (workers > 0)):
        interrupted = loader(ds.to_torch(20, **options), workers)
        assert plain_batches(islice(interrupted, step)) == expected[:step]
        resumed = loader(ds.to_torch(20, **options), workers)
        resumed.load_state_dict(pickle.loads(pickle.dumps(interrupted.state_dict())))
        assert plain_batches(resumed) == expected[step:iteration]
        assert step % 4 or plain_batches(resumed) == expected[iteration:]
    if workers == 0:
        batches = ds.batches(20, **{**options, "epochs": 4})
        assert expected == plain_batches(batches)


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_resumes_in_one_process_without_torchdata(
    ds: Dataset, variant: dict[str, Any]
) -> None:
    expected = plain_batches(ds.batches(16, shuffle=True, seed=2, epochs=2, **variant))
    batches = ds.to_torch(16, shuffle=True, seed=2, **variant)
    iterator = iter(batches)
    for step in range(len(expected) // 2):
        state = json.loads(json.dumps(batches.state_dict()))
        resumed = ds.to_torch(16, shuffle=True, seed=2, **variant)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert plain_batches(resumed) + plain_batches(resumed) == expected[step:]
        next(iterator)


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_skipping_workers_yield_every_usable_record_once(
    ds: Dataset, shuffle: Any, workers: int
) -> None:
    options: dict[str, Any] = {
        "shuffle": shuffle,
        "seed": 4,
        **window_options(shuffle, 2000),
        **SKIP,
    }
    batch_loader = loader(ds.to_torch(8, **options), workers)
    usable = [row for row in range(ROWS) if row not in BAD]
    for epoch in range(2):
        batches = [batch["id"].tolist() for batch in batch_loader]
        assert sorted(n for rows in batches for n in rows) == usable
        assert sum(len(rows) < 8 for rows in batches) <= workers
        if workers == 1:
            all_batches = [
                batch["id"].tolist() for batch in ds.batches(8, **{**options, "epochs": 2})
            ]
            assert batches == all_batches[epoch * len(batches) : (epoch + 1) * len(batches)]
    full_batches = [
        batch["id"].tolist()
        for batch in loader(ds.to_torch(8, drop_remainder=True, **options), workers)
    ]
    assert {len(rows) for rows in full_batches} == {8}
    with pytest.raises(TypeError, match="known only at the end"):
        len(ds.to_torch(8, **options))


def test_torch_hosts_share_steps(ds: Dataset) -> None:
    for variant in ({}, BUCKETED, PACKED):
        options: dict[str, Any] = {
            "shuffle": "global",
            "seed": 1,
            "drop_remainder": True,
            "num_hosts": 2,
            **variant,
        }
        for host in range(2):
            expected = plain_batches(ds.batches(2, host_index=host, **options))
            assert len(expected) > 4
            assert plain_batches(loader(ds.to_torch(2, host_index=host, **options), 2)) == expected


def test_counted_bucketed_steps_resume(ds: Dataset) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 2, **BUCKETED}
    expected = plain_batches(ds.batches(16, **options, epochs=2))
    batches = ds.to_torch(16, **options)
    for step in (4, 15):
        state = json.loads(json.dumps(batches.state_after(step)))
        rest = expected[step:] if step > len(expected) // 2 else expected[step : len(expected) // 2]
        assert plain_batches(loader(ds.to_torch(16, **options, state=state), 3)) == rest
        assert plain_batches(loader(ds.to_torch(16, **options, start_step=step), 2)) == rest


def test_impossible_torch_option_or_state_is_refused(ds: Dataset) -> None:
    for variant in (PACKED, SKIP):
        with pytest.raises(UsageError, match=r"pass a (state|`state`)"):
            ds.to_torch(8, start_step=1, **variant)
        with pytest.raises(UsageError, match="StatefulDataLoader"):
            ds.to_torch(8, **variant).state_after(3)
    with pytest.raises(UsageError, match="num_hosts"):
        ds.to_torch(8, num_hosts=2, host_index=0, **SKIP)
    with pytest.raises(UsageError, match=r"on_bad=.*: must be one of error, skip"):
        ds.to_torch(8, on_bad="ignore")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="does not work with"):
        ds.to_torch(8, **{**PACKED, **SKIP, "decode_images": None})
    state = ds.to_torch(8, **BUCKETED).state_dict()
    with pytest.raises(UsageError, match="others"):
        ds.to_torch(8, **PACKED).load_state_dict({**state, "others": -1})
    with pytest.raises(UsageError, match="bucketed together"):
        ds.to_torch(16, shuffle=True, seed=2, collate={"tokens": Padded()}).load_state_dict(
            {
                **ds.to_torch(16, shuffle=True, seed=2, **BUCKETED).state_after(1),
                "worker": 0,
                "workers": 1,
            }
        )


BATCH, EPOCHS = 32, 3
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


def run_with_kills(
    script: str, out: Path, folder: Path, kills: tuple[int, ...]
) -> dict[int, list[int]]:
    """Runs a script again after each kill, and returns the ids of each step.

    The script saves its state, and logs `[step, [ids]]`. Its last argument is the step in which it
    kills itself, or -1.

    Args:
        kills: The steps in which the script is killed, before it runs to its end.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    for step in (*kills, -1):
        command = [sys.executable, "-c", script, str(out), str(folder), str(step)]
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert process.returncode == (0 if step < 0 else -signal.SIGKILL), process.stderr[-2000:]
    steps: dict[int, list[int]] = {}
    for line in (folder / "log").read_text().splitlines():
        step, ids = json.loads(line)
        assert steps.setdefault(step, ids) == ids, (
            f"step {step} had other records when it was done again"
        )
    return steps


def test_killed_training_resumes_with_the_same_batches(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(300)}, shards=3)
    ends = []
    for name, kills in (("unbroken", ()), ("killed", (4, 10, 17))):
        (tmp_path / name).mkdir()
        steps = run_with_kills(SCRIPT, out, tmp_path / name, kills)
        expected = open(out).batches(BATCH, shuffle="global", seed=3, epochs=EPOCHS)
        assert steps == {step: batch["id"].tolist() for step, batch in enumerate(expected)}
        ends.append(torch.load(tmp_path / name / "end.pt"))
    assert all(torch.equal(ends[0][weight], ends[1][weight]) for weight in ends[0])


def test_code_block_of_the_page_runs(tmp_path: Path) -> None:
    schema = Schema(
        (
            *(Feature(name, "int64", (), True) for name in "ny"),
            Feature("words", "int64", (None,), True),
        ),
        "y",
    )
    columns = {
        "n": range(300),
        "words": [list(range(i % 9)) for i in range(300)],
        "y": np.arange(300) % 2,
    }
    ds = recordmill.open(write_data_set(tmp_path / "out", {"train": columns}, schema))
    (block,) = re.findall(
        r"(?ms)^```py\n(.*?)^```$",
        (ROOT / "docs" / "training.md").read_text(encoding="utf-8"),
    )
    names = {"ds": ds, "recordmill": recordmill}
    exec(compile(block, "page", "exec"), names)
    assert names["epoch"] == 2
