"""`recordmill check` and `build --expect` report violations by exit code and message.

A build that violates its expectations commits nothing.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kit.image_samples import encode_image
from kit.runs import run_command
from PIL import Image

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.checks.constraints import ExpectationError

THRESHOLDS = ("jensen_shannon", "l_infinity", "missing", "new_values")
SPLITS = "train=0.8,test=0.2"


def frame(rows: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "fare": np.where(random.random(rows) < 0.1, np.nan, random.exponential(20, rows)),
            "user": random.integers(0, 10**9, rows),
            "carrier": random.choice(["UA", "B6", "EV"], rows, p=[0.6, 0.3, 0.1]),
        }
    )


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the data sets `one`, `two`, `far` and `bare`.

    `one` and `two` have one distribution. `far` drifts, has leaks and contains records twice.
    `bare` has no statistics.
    """
    folder = tmp_path_factory.mktemp("sets")
    drifted = frame(1500, 3)
    drifted["fare"] += 40
    drifted.loc[1400:1419] = drifted.loc[100:119].to_numpy()  # 20 duplicates
    drifted["user"] = drifted["user"].astype("int64")
    drifted.loc[1300:1309, "user"] = drifted.loc[50:59, "user"].to_numpy()
    for name, rows in (
        ("one", frame(1500, 1)),
        ("two", frame(1100, 2)),
        ("far", drifted.infer_objects()),
    ):
        recordmill.build(rows, folder / name, splits=SPLITS, label="carrier")
    recordmill.build(frame(50, 4), folder / "bare", stats=False)
    return folder


def test_data_sets_of_one_distribution_pass(sets: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(capfd, "check", sets / "one", "--against", sets / "two") == (
        0,
        "",
        "all checks passed\n",
    )
    assert run_command(capfd, "check", sets / "one", "--quiet") == (0, "", "")
    against = [
        "--against",
        sets / "one" / "statistics.pb",
        "--against",
        sets / "one" / "schema.pbtxt",
    ]
    assert run_command(capfd, "check", sets / "two", *against, "--json") == (0, "[]\n", "")


def test_planted_drift_is_found(sets: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capfd, "check", sets / "far", "--against", sets / "one", "--json")
    violations = json.loads(out)
    assert code == 1
    assert {
        (violation["check"], violation["feature"], violation["split"]) for violation in violations
    } == {
        ("drift", "fare", "train"),
        ("drift", "fare", "test"),
    }
    assert all(
        violation["figure"] > violation["threshold"] and violation["remedy"]
        for violation in violations
    )
    rules = {"features": {"fare": {"drift": None}}}
    assert recordmill.check(sets / "far", against=[sets / "one", rules]) == []


def test_leaks_and_duplicates_are_found_with_their_places(
    sets: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = recordmill.open(sets / "far")
    rows = pd.concat(
        {
            split: recordmill.open(sets / "far", split).to_table().to_pandas()
            for split in dataset.splits
        }
    )
    rows = rows.fillna(-1.0)
    train, test = rows.loc["train"], rows.loc["test"]
    counts = {
        ("leakage", "test"): int(
            test.apply(tuple, axis=1).isin(set(train.apply(tuple, axis=1))).sum()
        ),
        ("duplicates", "train"): int(train.duplicated().sum()),
        ("duplicates", "test"): int(test.duplicated().sum()),
    }
    assert sum(counts.values()) >= 20 > counts["leakage", "test"] > 0
    code, out, err = run_command(capfd, "check", sets / "far")
    assert code == 1
    lines = out.splitlines()
    assert err.endswith(f"{len(lines)} checks failed\n")
    for (check, split), count in counts.items():
        matching_lines = [line for line in lines if f"{split}: {check}: {count:,} of" in line]
        assert len(matching_lines) == (count > 0)
    for violation in recordmill.check(sets / "far"):
        assert violation.file is not None
        assert violation.record is not None
        record = recordmill.open(violation.file)[violation.record]
        place = violation.what.rpartition("this one as record ")[2].split(" of ")
        assert recordmill.open(place[1])[int(place[0])] == record or np.isnan(record["fare"])
    keys = recordmill.check(sets / "far", against={"leakage": {"keys": ["user"]}})
    assert [violation.feature for violation in keys] == ["user"]
    assert keys[0].figure == test["user"].isin(set(train["user"])).mean()
    assert keys[0].figure > counts["leakage", "test"] / len(test)
    lenient_rules = {
        "leakage": {"records": 0.2, "keys": {"user": 0.2}},
        "duplicates": {"records": 0.2},
    }
    assert recordmill.check(sets / "far", against=lenient_rules) == []
    # With so little memory, the digests are in files.
    assert recordmill.check(sets / "far", memory=10_000) == recordmill.check(sets / "far")


def test_remedy_of_a_violation_names_options_as_in_python(sets: Path) -> None:
    (violation,) = recordmill.check(sets / "far", against={"leakage": {"keys": ["user"]}})
    assert "build with split_by= and a feature" in violation.remedy
    assert violation.remedy == violation.to_json()["remedy"]
    assert violation.remedy in str(violation)


def test_equal_images_in_two_splits_are_found(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for number in range(30):
        folder = tmp_path / "in" / ("train" if number < 20 else "test") / "cat"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (40, 50, 3), np.uint8)
        (folder / f"{number}.png").write_bytes(encode_image("PNG", Image.fromarray(pixels)))
    recordmill.build(tmp_path / "in", tmp_path / "clean")
    assert recordmill.check(tmp_path / "clean") == []
    copy = (tmp_path / "in" / "train" / "cat" / "3.png").read_bytes()
    (tmp_path / "in" / "test" / "cat" / "copy.png").write_bytes(copy)
    recordmill.build(tmp_path / "in", tmp_path / "leaky")
    violations = [
        violation for violation in recordmill.check(tmp_path / "leaky") if "bytes" in violation.what
    ]
    assert [(violation.check, violation.feature, violation.split) for violation in violations] == [
        ("leakage", "image", "test")
    ]
    assert violations[0].figure == pytest.approx(1 / 11)


def test_near_duplicate_photos_are_found_and_no_others(shared_data: Path, tmp_path: Path) -> None:
    photos = sorted((shared_data / "images" / "clothing-small").rglob("*.jpg"))[::18]
    copies = []
    for number, path in enumerate(photos):
        folder = tmp_path / "in" / ("train" if number % 4 else "test") / "x"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(path.read_bytes())
        if number % 8 == 1:
            copies.append((number, path))
    rules = {
        "leakage": {"near_images": 0},
        "duplicates": {"near_images": 0},
        "skew": dict.fromkeys(THRESHOLDS),
    }
    recordmill.build(tmp_path / "in", tmp_path / "clean")
    assert [
        str(candidate)
        for candidate in recordmill.check(tmp_path / "clean", against=rules)
        if candidate.check != "skew"
    ] == []
    for number, path in copies:
        with Image.open(path) as photo:
            small_photo = photo.convert("RGB").resize((photo.width // 2, photo.height // 2))
        (tmp_path / "in" / "test" / "x" / f"copy{number}.jpg").write_bytes(
            encode_image("JPEG", small_photo, quality=70)
        )
    recordmill.build(tmp_path / "in", tmp_path / "leaky")
    (violation,) = [
        candidate
        for candidate in recordmill.check(tmp_path / "leaky", against=rules)
        if candidate.check != "skew"
    ]
    assert (violation.check, violation.split, violation.feature) == ("leakage", "test", "image")
    assert f"{len(copies):,} of" in violation.what
    assert "looks like one of split 'train'" in violation.what


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bare"], "bare: has no statistics; to read its records: --recount"),
        (["one", "--against", "bare"], "bare: has no statistics; to read its records: --recount"),
        (["one", "--against", "missing.pbtxt"], "missing.pbtxt: can't be read"),
        (["one", "--against", "missing.yaml"], "missing.yaml: can't be read"),
        (
            ["one", "--against", "rows.yaml"],
            "rows.yaml: no feature 'fair'; there are fare, user, carrier; did you mean fare?",
        ),
        (["one", "--against", "rows.yaml", "--against", "rules.yml"], "no feature 'fair'"),
        (
            ["one", "--against", "rules.yml", "--against", "rules.yml"],
            "--against rules.yml: only one set of rules can be given",
        ),
        (["one", "--against", "junk.pb"], "junk.pb: is not a DatasetFeatureStatisticsList"),
        (
            ["one", "--against", "empty.pb"],
            "empty.pb: contains no statistics of features, or those of another version",
        ),
        (["one", "--against", "junk.pbtxt"], "junk.pbtxt: is not a tensorflow_metadata schema"),
        (["one", "--against", ""], "is empty"),
        (["one", "--against", "nowhere"], "nowhere"),
        (
            ["one", "--against", "images.yaml"],
            "duplicates: near_images: no feature of the data set holds enc",
        ),
        (
            ["one", "--against", "drift.yaml"],
            "drift.yaml: drift: compares two data sets; add the other one with --against OTHER",
        ),
        (["one", "--against", "drift.yaml", "--against", "one/schema.pbtxt"], "--against OTHER"),
        (["one", "--against", "fare.yaml"], "fare.yaml: drift: compares two data sets"),
        (["one", "--memory", "lots"], "--memory lots"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    words: list[str],
    message: str,
    sets: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(sets)
    Path("rows.yaml").write_text("features: {fair: {min: 0}}")
    Path("rules.yml").write_text("features: {fare: {min: 0}}")
    Path("images.yaml").write_text("duplicates: {near_images: 0}")
    Path("drift.yaml").write_text("drift: {jensen_shannon: 0.0001}")
    Path("fare.yaml").write_text("features: {fare: {drift: 0.0001}}")
    Path("junk.pb").write_bytes(b"\xff\xfejunk")
    Path("empty.pb").write_bytes(b"")
    Path("junk.pbtxt").write_text("feature { name: ")
    code, out, err = run_command(capfd, "check", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_drift_rule_needs_another_data_set_before_records_are_read(
    sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {"features": {"fare": {"drift": 0.9}}}
    assert recordmill.check(sets / "one", against=[rules, sets / "two"]) == []
    assert recordmill.check(sets / "one", against=[sets / "two" / "statistics.pb", rules]) == []
    disabled = {"drift": {"missing": None}, "features": {"fare": {"drift": None}}}
    assert recordmill.check(sets / "one", against=disabled) == []
    (file,) = sets.glob("bare/data-*/*.tfrecord")
    monkeypatch.setattr("recordmill.reader.open_files.infer_from_files", pytest.fail)
    with pytest.raises(
        UsageError, match=r'drift: compares .* add the other one with against="OTHER"'
    ):
        recordmill.check(file, recount=True, against=[sets / "one" / "schema.pbtxt", rules])


def test_damaged_data_set_is_exit_code_2(
    sets: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    code, out, err = run_command(capfd, "check", tmp_path / "rows.csv")
    assert (code, out) == (2, "")
    assert "this is not a TFRecord file" in err
    shutil.copytree(sets / "one", tmp_path / "one")
    (statistics,) = tmp_path.glob("one/data-*/statistics.pb")
    statistics.write_bytes(b"")
    assert run_command(capfd, "check", tmp_path / "one")[:2] == (2, "")
    statistics.unlink()
    assert run_command(capfd, "check", tmp_path / "one")[:2] == (2, "")


def test_statistics_without_a_feature_are_refused_as_another_version(
    sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = recordmill.open(sets / "one").statistics.select(
        ["train", "test"], ["fare", "carrier"]
    )
    monkeypatch.setattr(
        "recordmill.reader.statistics.read_stored_statistics", lambda dataset: statistics
    )
    with pytest.raises(
        UsageError,
        match="has statistics of another version, without feature 'user'; to read its records: recount=True",
    ):
        recordmill.check(sets / "one")


def test_data_without_statistics_is_checked_with_recount(sets: Path) -> None:
    assert recordmill.check(sets / "bare", recount=True) == []
    (file,) = sets.glob("bare/data-*/*.tfrecord")
    assert [
        violation.check
        for violation in recordmill.check(file, recount=True, against={"records": [51, None]})
    ] == ["records"]


RULES: dict[str, Any] = {
    "features": {"fare": {"present": 0.99, "max": 30}, "carrier": {"shares": {"UA": [0.5, 0.7]}}}
}


def test_build_that_violates_expectations_commits_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    frame(400, 1).to_csv(tmp_path / "in.csv", index=False)
    (tmp_path / "rules.yaml").write_text(json.dumps(RULES))
    out = tmp_path / "out"
    words = ["build", str(tmp_path / "in.csv"), "--out", str(out), "--label", "carrier", "--quiet"]
    assert main([*words, "--expect", str(tmp_path / "rules.yaml")]) == 1
    stderr = capfd.readouterr().err
    assert "2 expectations are not met; nothing was committed:" in stderr
    assert "train: feature 'fare': presence: " in stderr
    assert not [path for path in out.glob("*") if not path.name.startswith(".")]
    assert main(words) == 0
    before = sorted(path.name for path in out.iterdir())
    with pytest.raises(ExpectationError, match="below 99 %"):
        recordmill.build(tmp_path / "in.csv", out, label="carrier", overwrite=True, expect=RULES)
    assert sorted(path.name for path in out.iterdir()) == before
    assert recordmill.verify(out) == []
    (tmp_path / "rules.yaml").write_text(
        "features: {fare: {present: 0.5}}\nrecords: [400, 400]\nskew: {}"
    )
    assert main([*words, "--expect", str(tmp_path / "rules.yaml"), "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"expect": {"features": {"fair": {}}}},
            "no feature 'fair'; there are fare, user, carrier; did you mean fare",
        ),
        ({"expect": {"splits": {"test": [0, 1]}}}, "no split 'test'; there are train"),
        ({"expect": {"leakage": {"records": 0}}}, "after they are written"),
        (
            {"expect": {"drift": {"missing": 0}}},
            "drift: compares two data sets; leave it out of expect=",
        ),
        ({"expect": {"features": {"fare": {"drift": 0.1}}}}, "drift: compares two data sets"),
        ({"expect": {}, "stats": False}, "expect= and stats=False exclude each other"),
        ({"expect": "missing.yaml"}, "expect=.*can't be read"),
    ],
)
def test_invalid_expectations_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        recordmill.build(frame(30, 1), tmp_path / "out", **options)
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True
