"""A build with a transform has the results of NumPy on the training split alone.

The result doesn't depend on threads, and errors name their place.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import shard_bytes
from kit.image_samples import encode_image
from kit.runs import rejects_of
from kit.transform_sets import folder_of
from kit.transformed_set import DECLARED, SPLITS, words, zscore
from PIL import Image

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.base.errors import (
    DataError,
    UsageError,
)
from recordmill.building.workers import shared_files
from recordmill.building.workers.shared_files import JobFolder, NotSharedError
from recordmill.pipelines.build import build
from recordmill.preprocessing.metadata import restore_transform
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import load_manifest
from recordmill.shards.rejects import TooManyRejects
from recordmill.transforms.tft import analysis
from recordmill.transforms.tft.analysis import (
    publish_transform_folder,
    read_analyses,
    write_analysis,
    write_analysis_list,
)


def table(out: Path, split: str) -> Any:
    return recordmill.open(out, split=split).to_table().sort_by("id")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_transformed_numbers_equal_numpy_over_the_train_split(
    out: Path, raw: Any, split: str
) -> None:
    transformed, before, train = table(out, split), raw[split], raw["train"]
    assert transformed.num_rows == before.num_rows > 0
    np.testing.assert_array_max_ulp(
        transformed["age"].to_numpy(),
        zscore(before["age"].to_numpy(), train["age"].to_numpy()),
        maxulp=1,
    )
    fare = np.log1p(np.nan_to_num(before["fare"].to_numpy().astype(np.float64))).astype(np.float32)
    np.testing.assert_array_max_ulp(transformed["fare"].to_numpy(), fare, maxulp=1)
    miles, train_miles = (
        before["miles"].to_numpy().astype(np.float64),
        train["miles"].to_numpy().astype(np.float64),
    )
    expected = ((miles - train_miles.min()) / (train_miles.max() - train_miles.min())).astype(
        np.float32
    )
    np.testing.assert_array_max_ulp(transformed["miles"].to_numpy(), expected, maxulp=1)


def test_vocabulary_is_ordered_by_frequency_in_the_train_split(out: Path, raw: Any) -> None:
    top = words(raw["train"]["city"].to_pylist())[:5]
    for split in ("train", "validation"):
        indices, before = table(out, split)["city"].to_pylist(), raw[split]["city"].to_pylist()
        assert None in indices
        for index, city in zip(indices, before, strict=True):
            assert (
                index is None
                if city is None
                else index == top.index(city)
                if city in top
                else index in (5, 6)
            )
    notes = words(
        [word for note in raw["train"]["note"].to_pylist() for word in note.lower().split()]
    )
    assert table(out, "train")["note"].to_pylist() == [
        [notes.index(word) for word in note.lower().split()]
        for note in raw["train"]["note"].to_pylist()
    ]
    kinds = words(raw["train"]["kind"].to_pylist())
    assert table(out, "validation")["kind"].to_pylist() == [
        [float(word == kind) for word in kinds] for kind in raw["validation"]["kind"].to_pylist()
    ]


def test_bucket_boundaries_are_within_the_bound_of_the_sketch(out: Path, raw: Any) -> None:
    boundaries = load_manifest(out).transform["found"]["age_group"]["boundaries"]
    age = raw["train"]["age"].to_numpy()
    for place, boundary in enumerate(boundaries, start=1):
        share_below, share_up_to = np.mean(age < boundary), np.mean(age <= boundary)
        assert share_below - 0.01 <= place / 4 <= share_up_to + 0.01
    for split in ("train", "validation"):
        expected = np.searchsorted(boundaries, raw[split]["age"].to_numpy(), side="right")
        np.testing.assert_array_equal(table(out, split)["age_group"].to_numpy(), expected)


def test_features_without_a_step_and_the_label_stay(out: Path, raw: Any) -> None:
    manifest = load_manifest(out)
    schema = from_pbtxt(manifest.schema)
    assert schema.names == (
        "id",
        "age",
        "age_group",
        "fare",
        "miles",
        "city",
        "note",
        "kind",
        "label",
    )
    assert (schema.label, schema["label"].classes) == ("label", ("no", "yes"))
    assert schema["fare"].required
    assert not schema["city"].required
    assert table(out, "train")["label"].equals(raw["train"]["label"])
    assert recordmill.verify(out) == []


def test_bits_of_a_row_do_not_depend_on_its_batch(out: Path, inputs: Path, raw: Any) -> None:
    manifest = load_manifest(out)
    saved = restore_transform(str(folder_of(out)), manifest.transform, from_pbtxt(manifest.schema))
    batch = raw["train"].slice(0, 137).combine_chunks().to_batches()[0]
    expected, rejects = saved.apply(batch)
    assert not rejects
    for first, count in ((0, 1), (1, 15), (16, 17), (33, 104)):
        part, _ = saved.apply(batch.slice(first, count))
        assert part.equals(expected.slice(first, count))


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1},
        {"threads": 4, "memory": "128MiB"},
        {"beam_args": ("--direct_runner_bundle_repeat=1",)},
    ],
    ids=["1 thread", "4 threads", "repeated bundles"],
)
def test_threads_memory_and_bundles_do_not_change_the_bytes_of_a_transformed_build(
    out: Path, inputs: Path, tmp_path: Path, options: Any
) -> None:
    build(inputs, tmp_path / "again", splits=SPLITS, label="label", transform_from=out, **options)
    assert shard_bytes(tmp_path / "again") == shard_bytes(out)
    second, first = load_manifest(tmp_path / "again"), load_manifest(out)
    assert (second.transform, second.schema) == (first.transform, first.schema)
    assert recordmill.verify(tmp_path / "again") == []


FUNCTION = """
import tensorflow as tf
import tensorflow_transform as tft

MISSING = -1.0

def preprocessing_fn(inputs):
    fare = tft.sparse_tensor_to_dense_with_shape(inputs["fare"], [None, 1], MISSING)
    return {
        "id": inputs["id"],
        "label": inputs["label"],
        "fare": tf.squeeze(fare, 1),
        "age": tft.scale_to_z_score(tf.cast(inputs["age"], tf.float32)),
        "city": tft.compute_and_apply_vocabulary(inputs["city"], top_k=3),
        "old": inputs["age"] > 50,
    }

def fails(inputs):
    return {"x": inputs["no such feature"]}

def returns_a_list(inputs):
    return [inputs["age"]]

def returns_a_number(inputs):
    return {"age": 7}
"""


def test_build_with_a_function_of_the_user(inputs: Path, raw: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    result = build(
        inputs,
        tmp_path / "out",
        splits=SPLITS,
        label="label",
        transform=tmp_path / "mine.py",
        keep_raw=True,
    )
    schema = result.schema
    descriptions = {
        feature.name: feature.describe()
        for feature in schema
        if not feature.name.startswith("raw/")
    }
    assert descriptions == {
        "id": "int64",
        "age": "float32",
        "fare": "float32",
        "city": "int64",
        "label": "int64",
        "old": "int64",
    }
    assert (schema.label, schema["label"].classes) == ("label", ("no", "yes"))
    assert {name for name in schema.names if name.startswith("raw/")} == {
        "raw/age",
        "raw/fare",
        "raw/miles",
        "raw/city",
        "raw/note",
        "raw/kind",
    }
    transformed = table(tmp_path / "out", "validation")
    before = raw["validation"]
    assert transformed["raw/fare"].equals(before["fare"])
    np.testing.assert_allclose(
        transformed["age"].to_numpy(),
        zscore(before["age"].to_numpy(), raw["train"]["age"].to_numpy()),
        rtol=1e-4,
        atol=1e-6,
    )
    assert transformed["fare"].to_pylist() == [
        -1.0 if fare is None else fare for fare in before["fare"].to_pylist()
    ]
    assert load_manifest(tmp_path / "out").transform["given"] == "mine.py"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "fails",
            r"mine\.py, line \d+, in fails: `return \{\"x\": inputs\[\"no such feature\"\]\}`: KeyError",
        ),
        (
            "returns_a_list",
            r"line \d+: `def returns_a_list\(inputs\):`: it returns a list, not a dict of tensors",
        ),
        (
            "returns_a_number",
            r"`def returns_a_number\(inputs\):`: output 'age' is a int, not a tensor",
        ),
        ("nothing", r"has no function nothing; there are preprocessing_fn, fails, returns_a_list"),
    ],
)
def test_failing_user_function_is_reported_with_its_line(
    inputs: Path, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    with pytest.raises(UsageError, match=message):
        build(inputs, tmp_path / "out", transform=f"{tmp_path / 'mine.py'}:{name}")
    assert not (tmp_path / "out").exists()


def test_rows_that_a_transform_refuses_are_rejects_without_values(tmp_path: Path) -> None:
    photo = encode_image("PNG", Image.new("RGB", (6, 5), (0, 128, 255)))
    photos = [photo if i % 50 != 7 else b"secret, and no image" for i in range(200)]
    data = {"id": np.arange(200), "photo": photos}
    steps = {"photo": {"image": {"resize": [2, 3], "scale": 1 / 255}}}
    with pytest.raises(TooManyRejects, match="4 of 200 records were rejected"):
        build(data, tmp_path / "none", transform=steps)
    result = build(data, tmp_path / "out", transform=steps, max_rejects=4)
    rejects = rejects_of(result)
    assert sorted(reject["place"] for reject in rejects) == [
        "record 107",
        "record 157",
        "record 57",
        "record 7",
    ]
    assert {reject["reason"] for reject in rejects} == {"transform"}
    assert "secret" not in json.dumps(rejects)
    dataset = recordmill.open(tmp_path / "out")
    assert dataset.schema["photo"].describe() == "float32 [2, 3, 3]"
    np.testing.assert_allclose(dataset.to_numpy()["photo"][0, 0, 0], [0, 128 / 255, 1])
    assert len(dataset) == 196


ASSERTS = """
import tensorflow as tf
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    with tf.control_dependencies([tf.debugging.assert_less(inputs["age"], tf.constant(50, tf.int64))]):
        return {"age": tf.identity(inputs["age"]), "z": tft.scale_to_z_score(inputs["age"])}
"""


def test_assertion_of_a_transform_fails_the_fit_and_rejects_other_rows(
    tmp_path: Path,
) -> None:
    (tmp_path / "asserts.py").write_text(ASSERTS)
    (tmp_path / "young.csv").write_text("age\n" + "".join(f"{i}\n" for i in range(50)))
    (tmp_path / "all.csv").write_text("age\n" + "".join(f"{i}\n" for i in range(52)))
    with pytest.raises(
        DataError, match=r"fitted on split 'train': .*assertions see all records"
    ) as error:
        build(
            tmp_path / "all.csv",
            tmp_path / "none",
            transform=tmp_path / "asserts.py",
            max_rejects="100%",
        )
    assert "51" not in str(error.value)
    build(tmp_path / "young.csv", tmp_path / "out", transform=tmp_path / "asserts.py")
    result = build(
        tmp_path / "all.csv", tmp_path / "new", transform_from=tmp_path / "out", max_rejects=2
    )
    rejects = rejects_of(result)
    assert sorted(reject["place"] for reject in rejects) == ["line 52, row 50", "line 53, row 51"]
    assert sorted(recordmill.open(tmp_path / "new")["age"]) == list(range(50))


def test_transform_options_that_exclude_each_other_are_refused(
    inputs: Path, out: Path, tmp_path: Path
) -> None:
    for options, message in (
        ({"transform": DECLARED, "fit_on": "dev"}, 'fit_on="dev": no such split; there are train'),
        ({"transform": DECLARED, "transform_from": out}, "give one of them"),
        ({"fit_on": "train"}, "fit_on= needs transform="),
        ({"keep_raw": True}, "keep_raw=True needs transform="),
        ({"transform": 7}, "int is neither a path, nor a function, nor a dict of steps"),
        ({"transform": "missing.py"}, "missing.py: no such file"),
        ({"transform_from": inputs.parent}, "holds no data set"),
        (
            {"transform_from": out, "dtypes": {"age": "int32"}},
            "takes 'age' as int64, never missing; here it is int32",
        ),
    ):
        with pytest.raises((UsageError, DataError), match=message):
            build(inputs, tmp_path / "new", label="label", **options)
        assert not (tmp_path / "new").exists()


def test_fit_ignores_values_that_are_not_finite_and_notes_them(
    tmp_path: Path,
) -> None:
    numbers = np.arange(1000)
    floats = numbers.astype("f8")
    floats[:2] = np.nan, -np.inf
    data = {
        "x": floats,
        "many": 1_700_000_000 + numbers,
        "more": 1e12 + numbers,
        "word": ["", "a\nb", *["a", "b"] * 499],
    }
    steps = {"large": "many", "larger": "more", "z": "x", "m": "x"}
    transform: dict[str, Any] = {name: {"from": source} for name, source in steps.items()}
    for name, step in (
        ("large", {"bucketize": 4}),
        ("larger", {"bucketize": 4}),
        ("z", "zscore"),
        ("m", "minmax"),
    ):
        transform[name] |= step if isinstance(step, dict) else {step: True}
    result = build(
        data, tmp_path / "out", transform={**transform, "word": "vocabulary", "many": "keep"}
    )
    rows = recordmill.open(result.out).to_table().sort_by("many")
    for name in ("large", "larger"):
        assert np.bincount(rows[name].to_numpy(), minlength=4) == pytest.approx(250, abs=10)
    finite = floats[2:]
    np.testing.assert_array_equal(rows["m"].to_numpy()[2:], ((finite - 2) / 997).astype("f4"))
    np.testing.assert_allclose(rows["z"].to_numpy()[2:], zscore(finite, finite), rtol=1e-6)
    assert np.isnan(rows["m"].to_numpy()[0])
    assert rows["word"].to_pylist()[:2] == [2, 2]
    counts = load_manifest(result.out).transform["found"]
    assert (counts["z"]["nonfinite"], counts["m"]["nonfinite"], counts["word"]["unlisted"]) == (
        2,
        2,
        2,
    )
    notes = "\n".join(note for note in result.notes if note.startswith("transform: feature"))
    assert "'z': 2 values are NaN or infinite" in notes
    assert "'word': 2 words are empty or contain a line break" in notes
    assert "'large'" not in notes


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "model"
    (folder / ".tft_metadata").mkdir(parents=True)
    for name in ("saved_model.pb", "fingerprint.pb", ".tft_metadata/x"):
        (folder / name).write_text(name)
    monkeypatch.setattr(
        analysis.metadata_io,
        "write_metadata",
        lambda metadata, path: (Path(path).mkdir(), Path(path, "schema").write_text(metadata)),
    )
    return str(folder)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_published_transform_has_the_files_that_readers_expect(tmp_path: Path, model: str) -> None:
    target = tmp_path / "transform"
    assert publish_transform_folder(str(target), model, "schema", {"b": "2", "a": "1"}) == str(
        target
    )
    assert files_below(target) == [
        "transform_fn/saved_model.pb",
        "transformed_metadata/asset_map",
        "transformed_metadata/schema",
    ]
    asset_map = (target / "transformed_metadata" / "asset_map").read_text()
    assert asset_map == '{"a": "1", "b": "2"}'


def test_first_published_transform_is_kept(tmp_path: Path, model: str) -> None:
    target = tmp_path / "transform"
    for metadata in ("first", "second"):
        publish_transform_folder(str(target), model, metadata, {})
    assert (target / "transformed_metadata" / "schema").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "transform"]


def test_failed_publication_is_an_error(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk is full")

    monkeypatch.setattr(analysis, "rename", fail)
    with pytest.raises(OSError, match="disk is full"):
        publish_transform_folder(str(tmp_path / "transform"), model, "schema", {})
    assert not (tmp_path / "transform").exists()


def test_analysis_lists_keys_without_elements(tmp_path: Path) -> None:
    path = tmp_path / "analysis.json"
    write_analysis(str(path), [b"a", b"\xff"], [(b"a".hex(), b"1".hex()), (b"a".hex(), b"2".hex())])
    assert json.loads(path.read_text()) == {"61": ["31", "32"], "ff": []}


@pytest.fixture
def job_folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(str(tmp_path / "out"), "run1")
    for name in (shared_files.ATTEMPTS_FOLDER, shared_files.SHARED_VALUES_FOLDER):
        Path(folder.run_path(name)).mkdir(parents=True)
    return folder


def put_analyses(job_folder: JobFolder, *analyses: dict[str, list[str]]) -> list[tuple[int, str]]:
    names = [(number, f"analysis-{number}") for number in range(len(analyses))]
    for (_, name), content in zip(names, analyses, strict=True):
        Path(job_folder.run_path(shared_files.ATTEMPTS_FOLDER, name)).write_text(
            json.dumps(content)
        )
    return names


def list_analyses(job_folder: JobFolder, names: list[tuple[int, str]]) -> int:
    handle: Any = shared_files.SharedValue(job_folder, "plan", "digest")
    return write_analysis_list(None, names, handle)


def test_accepted_analyses_are_read_in_the_order_of_their_unit_groups(
    job_folder: JobFolder,
) -> None:
    first, second = {"61": ["31"]}, {"61": []}
    names = put_analyses(job_folder, first, second)
    assert list_analyses(job_folder, names[::-1]) == 2
    assert read_analyses(job_folder) == [first, second]
    assert list_analyses(job_folder, names[:1]) == 1  # a repeated step keeps the first list
    assert read_analyses(job_folder) == [first, second]


def test_split_without_records_has_no_analyses(job_folder: JobFolder) -> None:
    assert list_analyses(job_folder, []) == 0
    assert read_analyses(job_folder) == []


def test_analyses_of_different_transforms_are_an_error(job_folder: JobFolder) -> None:
    list_analyses(job_folder, put_analyses(job_folder, {"61": []}, {"62": []}))
    with pytest.raises(DataError, match="workers were given another transform than others"):
        read_analyses(job_folder)


def test_missing_or_changed_analysis_is_an_error(job_folder: JobFolder) -> None:
    names = put_analyses(job_folder, {"61": []})
    list_analyses(job_folder, names)
    path = Path(job_folder.run_path(shared_files.ATTEMPTS_FOLDER, names[0][1]))
    path.write_text("{")
    with pytest.raises(DataError, match="was changed after this build had written it"):
        read_analyses(job_folder)
    path.unlink()
    with pytest.raises(NotSharedError):
        read_analyses(job_folder)
