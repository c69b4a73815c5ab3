"""`recordmill bench` measures batches of every output, and names the slowest stage."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kit.data_sets import mixed_rows, write_data_set
from kit.image_samples import encode_image, picture

from recordmill.__main__ import main
from recordmill.base.errors import MissingExtraError
from recordmill.base.stages import STAGES
from recordmill.pipelines.build import build
from recordmill.reader.bench import BENCH_OUTPUTS, BenchResult, measure
from recordmill.reader.dataset import open


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(
        tmp_path_factory.mktemp("bench") / "out", {"train": mixed_rows(500)}, shards=2
    )


def test_bench_counts_the_batches_and_records_of_an_epoch(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--batch-size", "64", "--seconds", "600", "--columns", "id,name"]
    for shuffle in ("none", "window", "global"):
        assert (
            main(
                [
                    "bench",
                    str(out),
                    *options,
                    "--shuffle",
                    shuffle,
                    "--memory-bytes",
                    "64MiB",
                    "--json",
                ]
            )
            == 0
        )
        result = json.loads(capsys.readouterr().out)
        assert (result["batches"], result["records"]) == (8, 500)
        assert result["framed_bytes"] == sum(
            path.stat().st_size for path in out.glob("data-*/*.tfrecord")
        )
        assert set(result["stage_seconds"]) == set(STAGES)
    assert main(["bench", str(out), *options]) == 0
    output = capsys.readouterr().out
    assert "8 batches in" in output
    assert "to go faster: " in output


@pytest.mark.parametrize("consumer", BENCH_OUTPUTS)
def test_bench_measures_every_output_and_stage(
    out: Path, capsys: pytest.CaptureFixture[str], consumer: str
) -> None:
    pytest.importorskip({"tf": "tensorflow", "torch": "torch"}.get(consumer, "numpy"))
    assert (
        main(
            [
                "bench",
                str(out),
                "--as",
                consumer,
                "--batch-size",
                "100",
                "--seconds",
                "600",
                "--json",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert (result["as"], result["batches"], result["records"]) == (consumer, 5, 500)
    stages = measure(open(out), 600, consumer=consumer, batch_size=100).stages
    assert all(stages[stage] > 0 for stage in ("read", "check", "decode", "collate"))


def test_bench_decodes_images_at_the_requested_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(8):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(
            encode_image("JPEG", picture(size=(40 + number, 30), seed=number))
        )
    build(tmp_path / "photos", tmp_path / "out")
    options = ["--batch-size", "4", "--seconds", "600", "--json"]
    assert main(["bench", str(tmp_path / "out"), *options, "--image-size", "20x16"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 8
    assert main(["bench", str(tmp_path / "out"), *options, "--image-size", "20"]) == 2
    assert "--image-size 20: write HEIGHTxWIDTH in pixels, as in 224x224" in capsys.readouterr().err


def test_bench_times_the_first_batch_including_the_open(out: Path) -> None:
    ds = open(out)
    assert measure(ds, 600, open_seconds=100.0, batch_size=100).first_seconds > 100
    assert measure(ds, 600, batch_size=100).first_seconds < 100


def test_bench_of_an_output_that_is_not_installed_names_the_extra(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "recordmill.reader.torch.datasets", raising=False)
    with pytest.raises(MissingExtraError, match="torch"):
        measure(open(out), 600, consumer="torch", batch_size=100)


def test_bench_advice_is_about_the_slowest_stage() -> None:
    advice = {
        stage: BenchResult(
            5, 500, 1000, 7.0, 0.1, {**dict.fromkeys(STAGES, 1.0), stage: 10.0}, 2, 6.0
        ).advice()
        for stage in STAGES
    }
    assert len(set(advice.values())) == len(STAGES)
    idle_result = BenchResult(
        5, 500, 1000, 70.0, 0.1, {**dict.fromkeys(STAGES, 1.0), "decode": 2.0}, 2, 6.0
    )
    assert len(
        {replace(idle_result, consumer=consumer).advice() for consumer in BENCH_OUTPUTS}
    ) == len(BENCH_OUTPUTS)
    assert "threads wait" in idle_result.advice()
    read_result = BenchResult(
        5, 500, 1000, 7.0, 0.1, {**dict.fromkeys(STAGES, 1.0), "read": 10.0}, 2, 6.0
    )
    assert "long ranges" in read_result.advice()
    assert "compressed" not in read_result.advice()
    assert (
        "long ranges"
        not in replace(read_result, shuffle="window", has_foreign_compression=True).advice()
    )
    assert "compressed" in replace(read_result, has_foreign_compression=True).advice()
    assert (
        "use more cores"
        in replace(read_result, seconds=0.001, stages={"check": 10.0}, threads=1000).advice()
    )
    assert (
        "leave out features"
        not in replace(read_result, stages={"decode": 10.0}, features=1, threads=1).advice()
    )
    assert (
        "no batches" in BenchResult(0, 0, 0, 1.0, 0.0, dict.fromkeys(STAGES, 0.0), 2, 1.0).advice()
    )
