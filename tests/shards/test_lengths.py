"""Every command reports record counts that differ from `dataset_info.json`.

This file is next to the TFRecord files.
"""

import json
import warnings
from pathlib import Path

import pytest
from kit.files import tfrecord_bytes

import recordmill
from recordmill.base.errors import DataWarning
from recordmill.commands.main import run

LENGTHS = [3, 4, 5]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of TensorFlow Datasets with three shards."""
    folder = tmp_path / "flowers"
    folder.mkdir()
    for index, records in enumerate(LENGTHS):
        payloads = [recordmill.example({"n": index * 10 + i}) for i in range(records)]
        path = folder / f"flowers-train.tfrecord-{index:05d}-of-00003"
        path.write_bytes(tfrecord_bytes(payloads))
    write_lengths(folder, LENGTHS)
    return folder


def write_lengths(folder: Path, lengths: list[int]) -> None:
    split = {"name": "train", "shardLengths": [str(length) for length in lengths]}
    (folder / "dataset_info.json").write_text(json.dumps({"splits": [split]}))


def collect_outputs(folder: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns the output of each command about a folder.

    The last text has the warnings of `open`.
    """
    outputs = []
    for command in (
        ["inspect", str(folder)],
        ["inspect", str(folder), "--max-rejects", "1"],
        ["stats", str(folder)],
        ["build", "tfrecord", str(folder), "--out", f"{out}-built"],
        ["read", str(folder), "--out", str(out)],
        ["verify", str(folder)],
    ):
        code = run(command)
        captured = capsys.readouterr()
        # `verify` prints a colon after the path.
        outputs.append(
            " ".join(
                (captured.out + captured.err)
                .replace(": is ", " is ")
                .replace(": lists ", " lists ")
                .split()
            )
        )
        assert code == (command[0] == "verify" and "nothing is wrong" not in outputs[-1])
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        len(recordmill.open(folder))
    outputs.append(
        "; ".join(str(message.message) for message in messages if message.category is DataWarning)
    )
    return outputs


def test_complete_data_set_has_no_note(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = collect_outputs(folder, tmp_path / "to", capsys)
    assert not [text for text in outputs if "absent" in text or "dataset_info.json lists" in text]
    assert outputs[-1] == ""


def test_record_count_that_differs_from_dataset_info_is_reported_everywhere(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lengths(folder, [3, 9, 5])
    *other_outputs, read_output, verify_output, open_output = collect_outputs(
        folder, tmp_path / "to", capsys
    )
    for text in (*other_outputs, verify_output, open_output):
        assert "flowers-train.tfrecord-00001-of-00003" in text
        assert "has 4 records, but dataset_info.json lists 9" in text
    assert "split 'train' has 12 records, but dataset_info.json lists 17" in read_output


def test_shard_count_that_differs_from_dataset_info_is_reported_everywhere(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lengths(folder, [6, 6])
    for text in collect_outputs(folder, tmp_path / "to", capsys):
        assert "dataset_info.json lists 2 shards of split 'train'" in text


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"splits": 5}',
        '{"splits": [{"name": ["x"], "shardLengths": [1]}]}',
        '{"splits": [{"name": "train", "shardLengths": ["1e9", null, -1]}]}',
        '{"splits": [{"name": "train", "shardLengths": 7}]}',
        "\udcff\x00",
    ],
)
def test_dataset_info_without_valid_lengths_is_ignored(folder: Path, content: str) -> None:
    (folder / "dataset_info.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        assert len(recordmill.open(folder)) == sum(LENGTHS)


@pytest.mark.parametrize("ending", ["tfrecord", "csv"])
def test_build_of_one_shard_of_two_names_the_missing_one(ending: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    content = (
        tfrecord_bytes([recordmill.example({"n": 1})]) if ending == "tfrecord" else b"a,b\n1,2\n"
    )
    path = folder / f"x-00000-of-00002.{ending}"
    path.write_bytes(content)
    notes = recordmill.build(folder, tmp_path / "out").notes
    assert any(f"missing: {folder}/x-00001-of-00002.{ending}" in str(note) for note in notes)
    notes = recordmill.build(path, tmp_path / "one").notes
    assert not any("missing:" in str(note) for note in notes)
