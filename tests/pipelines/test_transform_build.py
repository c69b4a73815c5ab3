"""Builds with a transform equal NumPy over the training split alone, however they run; errors
name their place.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import shard_bytes
from kit.image_samples import encoded
from kit.runs import rejects_of
from kit.transformed_set import DECLARED, ROWS, SPLITS, words, write_csv, zscore
from PIL import Image

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.pipelines.build import build
from recordmill.preprocessing.metadata import restore_transform
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import TRANSFORM_FOLDER, Manifest, load_manifest
from recordmill.shards.rejects import TooManyRejects
from recordmill.sources.arrow.single_example import example


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("in") / "rides.csv"
    write_csv(path)
    return path


@pytest.fixture(scope="module")
def raw(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Split to the raw columns, sorted by id."""
    out = tmp_path_factory.mktemp("raw") / "out"
    build(inputs, out, splits=SPLITS, label="label")
    return {
        split: recordmill.open(out, split=split).to_table().sort_by("id")
        for split in ("train", "validation")
    }


@pytest.fixture(scope="module")
def out(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("declared") / "out"
    build(inputs, path, splits=SPLITS, label="label", transform=DECLARED, threads=2)
    return path


def table(out: Path, split: str) -> Any:
    return recordmill.open(out, split=split).to_table().sort_by("id")


def folder_of(out: Path) -> Path:
    return out / load_manifest(out).transform_folder / TRANSFORM_FOLDER


@pytest.mark.parametrize("split", ["train", "validation"])
def test_transformed_numbers_equal_numpy_over_the_train_split(
    out: Path, raw: Any, split: str
) -> None:
    made, before, train = table(out, split), raw[split], raw["train"]
    assert made.num_rows == before.num_rows > 0
    np.testing.assert_array_max_ulp(
        made["age"].to_numpy(), zscore(before["age"].to_numpy(), train["age"].to_numpy()), maxulp=1
    )
    fare = np.log1p(np.nan_to_num(before["fare"].to_numpy().astype(np.float64))).astype(np.float32)
    np.testing.assert_array_max_ulp(made["fare"].to_numpy(), fare, maxulp=1)
    miles, fitted = (
        before["miles"].to_numpy().astype(np.float64),
        train["miles"].to_numpy().astype(np.float64),
    )
    expected = ((miles - fitted.min()) / (fitted.max() - fitted.min())).astype(np.float32)
    np.testing.assert_array_max_ulp(made["miles"].to_numpy(), expected, maxulp=1)


def test_vocabulary_is_ordered_by_frequency_in_the_train_split(out: Path, raw: Any) -> None:
    top = words(raw["train"]["city"].to_pylist())[:5]
    for split in ("train", "validation"):
        made, before = table(out, split)["city"].to_pylist(), raw[split]["city"].to_pylist()
        assert None in made
        for index, city in zip(made, before, strict=True):
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
        below, upto = np.mean(age < boundary), np.mean(age <= boundary)
        assert below - 0.01 <= place / 4 <= upto + 0.01
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


def test_manifest_holds_the_fitted_values_as_json(out: Path, raw: Any) -> None:
    about = json.loads((out / "manifest.json").read_text())["transform"]
    age, miles = raw["train"]["age"].to_numpy(), raw["train"]["miles"].to_numpy()
    assert about["found"]["age"] == {
        "mean": pytest.approx(age.mean()),
        "variance": pytest.approx(age.var()),
    }
    assert about["found"]["miles"] == {"min": float(miles.min()), "max": float(miles.max())}
    assert about["found"]["city"]["vocabulary"] == 5
    path = folder_of(out) / about["found"]["city"]["vocabulary_file"]
    assert path.read_text().splitlines() == words(raw["train"]["city"].to_pylist())[:5]
    schema = recordmill.open(out).schema
    assert dict(schema["age"].found) == about["found"]["age"]
    assert dict(schema["city"].found) == {"vocabulary": 5}
    assert schema["label"].found == ()
    assert about["given"] == DECLARED
    assert (about["fitted_on"], about["inputs"]) == (
        "train",
        ["age", "fare", "miles", "city", "note", "kind"],
    )
    assert load_manifest(out).options["transform"] == about["digest"]


def test_tf_transform_reads_the_saved_transform(out: Path, raw: Any) -> None:
    import tensorflow as tf
    import tensorflow_transform as tft

    output = tft.TFTransformOutput(str(folder_of(out)))
    about = load_manifest(out)
    schema, raw_schema = from_pbtxt(about.schema), from_pbtxt(about.transform["raw_schema"])
    assert (
        output.vocabulary_size_by_name("vocabulary_3_city"),
        output.vocabulary_size_by_name("city"),
    ) == (5, 5)
    assert output.vocabulary_by_name("kind") == [
        word.encode() for word in output_words(out, "kind")
    ]
    spec = output.transformed_feature_spec()  # also of what is kept, and of the label
    assert set(spec) == set(schema.names) > {"id", "label"}
    records = [example(row, schema) for row in recordmill.open(out, split="validation")]
    parsed = tf.io.parse_example(records, spec)
    (batch,) = recordmill.open(out, split="validation").to_tf(
        len(records), shuffle=False, label=False
    )
    for name in ("id", "label", "age", "kind"):
        assert np.array_equal(parsed[name], batch[name])
    spec = output.raw_feature_spec()
    assert set(spec) == set(about.transform["inputs"])
    raw_records = [example(row, raw_schema) for row in raw["validation"].to_pylist()]
    made = output.transform_raw_features(tf.io.parse_example(raw_records, spec))
    by_id = np.argsort(batch["id"])
    assert np.allclose(made["age"], batch["age"].numpy()[by_id])
    assert np.array_equal(made["kind"], batch["kind"].numpy()[by_id])
    assert np.array_equal(
        tf.sparse.to_dense(made["city"], -9)[:, 0],
        np.where(batch["city/valid"], batch["city"], -9)[by_id],
    )


def test_tf_transform_parses_made_and_kept_lists(tmp_path: Path) -> None:
    import tensorflow as tf
    import tensorflow_transform as tft

    data = {
        "note": ["x y", "z", "", "y"],
        "ids": [[7], [], [7, 8], [9]],
        "deep": [[[1], [2, 3]], [], [[]], [[4]]],
    }
    steps = {"note": ["tokenize", "vocabulary"], "more": {"from": "ids", "vocabulary": {}}}
    build(data, tmp_path / "out", transform=steps, shuffle=False)
    opened = recordmill.open(tmp_path / "out")
    spec = tft.TFTransformOutput(str(folder_of(tmp_path / "out"))).transformed_feature_spec()
    assert set(spec) == set(opened.schema.names) == {"note", "more", "ids", "deep"}
    parsed = tf.io.parse_example([example(row, opened.schema) for row in opened], spec)
    expected = opened.to_table()
    for name in ("note", "more", "deep"):
        assert parsed[name].to_list() == expected[name].to_pylist()
    assert [len(words) for words in parsed["note"].to_list()] == [2, 1, 0, 1]
    assert tf.sparse.to_dense(parsed["ids"], -1).numpy().tolist() == [
        [7, -1],
        [-1, -1],
        [7, 8],
        [9, -1],
    ]


def output_words(out: Path, feature: str) -> list[str]:
    name = load_manifest(out).transform["found"][feature]["vocabulary_file"]
    return (folder_of(out) / name).read_text().splitlines()


def test_bits_of_a_row_do_not_depend_on_its_batch(out: Path, inputs: Path, raw: Any) -> None:
    manifest = load_manifest(out)
    saved = restore_transform(str(folder_of(out)), manifest.transform, from_pbtxt(manifest.schema))
    batch = raw["train"].slice(0, 137).combine_chunks().to_batches()[0]
    whole, refused = saved.apply(batch)
    assert not refused
    for first, count in ((0, 1), (1, 15), (16, 17), (33, 104)):
        part, _ = saved.apply(batch.slice(first, count))
        assert part.equals(whole.slice(first, count))


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1},
        {"threads": 4, "memory": "128MiB"},
        {"beam_args": ("--direct_runner_bundle_repeat=1",)},
    ],
    ids=["1 thread", "4 threads", "repeated bundles"],
)
def test_given_transform_gives_the_same_bytes_however_the_build_runs(
    out: Path, inputs: Path, tmp_path: Path, options: Any
) -> None:
    build(inputs, tmp_path / "again", splits=SPLITS, label="label", transform_from=out, **options)
    assert shard_bytes(tmp_path / "again") == shard_bytes(out)
    again, before = load_manifest(tmp_path / "again"), load_manifest(out)
    assert (again.transform, again.schema) == (before.transform, before.schema)
    assert recordmill.verify(tmp_path / "again") == []


def test_changed_file_of_a_transform_is_found_and_not_used(
    out: Path, inputs: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    words_file = folder_of(copy) / load_manifest(copy).transform["found"]["city"]["vocabulary_file"]
    words_file.write_text(words_file.read_text().replace("city 1", "city 9"))
    (folder_of(copy) / "stray").write_text("")
    found = [str(problem) for problem in recordmill.verify(copy)]
    assert found == [
        f"{words_file}: SHA-256 differs",
        f"{folder_of(copy) / 'stray'}: is not part of the data set",
    ]
    with pytest.raises(
        DataError, match="differs from what the manifest says; the transform can't be used"
    ):
        build(inputs, tmp_path / "new", splits=SPLITS, label="label", transform_from=copy)
    assert not (tmp_path / "new").exists()


def test_link_in_place_of_a_file_of_a_transform_is_not_followed(
    out: Path, inputs: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    words_file = folder_of(copy) / load_manifest(copy).transform["found"]["city"]["vocabulary_file"]
    words_file.rename(tmp_path / "elsewhere")
    words_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is missing; the transform can't be used"):
        build(inputs, tmp_path / "new", splits=SPLITS, label="label", transform_from=copy)
    shutil.rmtree(folder_of(copy))
    with pytest.raises(DataError, match="transform: is missing; the manifest names it"):
        build(inputs, tmp_path / "new", splits=SPLITS, label="label", transform_from=copy)


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
    done = build(
        inputs,
        tmp_path / "out",
        splits=SPLITS,
        label="label",
        transform=tmp_path / "mine.py",
        keep_raw=True,
    )
    schema = done.schema
    described = {
        feature.name: feature.describe()
        for feature in schema
        if not feature.name.startswith("raw/")
    }
    assert described == {
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
    made = table(tmp_path / "out", "validation")
    before = raw["validation"]
    assert made["raw/fare"].equals(before["fare"])
    np.testing.assert_allclose(
        made["age"].to_numpy(),
        zscore(before["age"].to_numpy(), raw["train"]["age"].to_numpy()),
        rtol=1e-4,
        atol=1e-6,
    )
    assert made["fare"].to_pylist() == [
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


STEPS = {
    "exact": {"from": "n", "clip": [1_700_000_001, 1_700_000_003]},
    "inner": {"from": "i", "clip": [0.5, 5.5]},
    "open": {"from": "i", "clip": [None, 2]},
    "real": {"from": "f", "clip": [0.1, 0.7]},
    "some": {"from": "m", "clip": [None, 3]},
    "filled": {"from": "m", "impute": 1e15},
    "bucket": {"from": "s", "hash": 7},
    "numbers": {"from": "i", "hash": 5},
    "words": {"from": "s", "tokenize": {"lower": True}},
    "parts": {"from": "s", "tokenize": {"separator": "-"}},
    "frequent": {"from": "s", "vocabulary": {"min_count": 3, "oov_buckets": 0}},
    "known": {"from": "s", "vocabulary": {"top_k": 1, "oov_buckets": 2}},
}


def test_values_of_clip_hash_tokenize_and_vocabulary(tmp_path: Path) -> None:
    import tensorflow as tf

    texts = ["Ab c", "x-y", "x-y", "Ab c", "Ab c", "é", "q Q"]
    whole = [-3, 0, 1, 5, 6, 2**62, -(2**62)]
    data = {
        "n": 1_700_000_000 + np.arange(7),
        "i": np.array(whole),
        "f": np.array([0.0, 0.1, 0.25, 0.5, 0.7, 0.9, -1.0]),
        "m": [None, 1, 2, 3, 4, None, 2**53 + 1],
        "s": texts,
    }
    dropped = dict.fromkeys(data, "keep")
    build(data, tmp_path / "out", transform={**dropped, **STEPS})
    rows = recordmill.open(tmp_path / "out").to_table().sort_by("n").to_pylist()

    def column(name: str) -> list[Any]:
        return [row[name] for row in rows]

    assert column("exact") == [1_700_000_000 + one for one in (1, 1, 2, 3, 3, 3, 3)]
    assert column("inner") == [1, 1, 1, 5, 5, 5, 1]
    assert column("open") == [min(one, 2) for one in whole]
    assert column("real") == [
        float(np.float32(one)) for one in (0.1, 0.1, 0.25, 0.5, 0.7, 0.7, 0.1)
    ]
    assert column("some") == [None, 1, 2, 3, 3, None, 3]
    assert column("filled") == [10**15, 1, 2, 3, 4, 10**15, 2**53 + 1]
    assert column("bucket") == tf.strings.to_hash_bucket_fast(texts, 7).numpy().tolist()
    assert (
        column("numbers")
        == tf.strings.to_hash_bucket_fast([str(one) for one in whole], 5).numpy().tolist()
    )
    assert column("words") == [text.lower().split() for text in texts]
    assert column("parts") == [text.split("-") for text in texts]
    assert column("frequent") == [0 if text == "Ab c" else -1 for text in texts]
    known = column("known")
    assert [one == 0 for one in known] == [text == "Ab c" for text in texts]
    assert {one for one in known if one} <= {1, 2}
    assert known[1] == known[2]


SPARSE = """
import tensorflow as tf

def preprocessing_fn(inputs):
    m = inputs["m"]
    return {
        "id": inputs["id"],
        "double": tf.SparseTensor(m.indices, 2 * m.values, m.dense_shape),
        "one": tf.sparse.from_dense(tf.cast(inputs["id"] % 2, tf.int64)[:, None]),
        "several": tf.sparse.from_dense(tf.stack([inputs["id"], inputs["id"] + 1], 1)),
    }

def with_gaps(inputs):
    id = inputs["id"]
    return {"id": id, "gaps": tf.sparse.from_dense(tf.stack([id * 0, id + 1, id * 0, id + 1], 1))}

def without_gaps(inputs):
    found = with_gaps(inputs)
    return {"id": found["id"], "gaps": tf.ensure_shape(tf.sparse.to_dense(found["gaps"]), [None, 4])}
"""


def test_sparse_outputs_become_optional_values_or_lists_or_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SPARSE)
    data = {"id": np.arange(1, 5), "m": [None, 10, None, 30]}
    done = build(data, tmp_path / "out", transform=tmp_path / "mine.py")
    assert {feature.name: (feature.describe(), feature.required) for feature in done.schema} == {
        "id": ("int64", True),
        "double": ("int64", False),
        "one": ("int64", False),
        "several": ("int64 [?]", False),
    }
    rows = recordmill.open(tmp_path / "out").to_table().sort_by("id").to_pylist()
    assert [row["double"] for row in rows] == [None, 20, None, 60]
    assert [row["one"] for row in rows] == [1, None, 1, None]
    assert [row["several"] for row in rows] == [[1, 2], [2, 3], [3, 4], [4, 5]]
    with pytest.raises(
        DataError,
        match=r"'gaps' a SparseTensor with values in the columns \[1, 3\].*tf\.sparse\.to_dense",
    ):
        build(data, tmp_path / "gaps", transform=f"{tmp_path / 'mine.py'}:with_gaps")
    build(data, tmp_path / "dense", transform=f"{tmp_path / 'mine.py'}:without_gaps")
    rows = recordmill.open(tmp_path / "dense").to_table().sort_by("id").to_pylist()
    assert [row["gaps"] for row in rows] == [[0, one + 1, 0, one + 1] for one in (1, 2, 3, 4)]


def test_rows_that_a_transform_refuses_are_rejects_without_values(tmp_path: Path) -> None:
    photo = encoded("PNG", Image.new("RGB", (6, 5), (0, 128, 255)))
    photos = [photo if i % 50 != 7 else b"secret, and no image" for i in range(200)]
    data = {"id": np.arange(200), "photo": photos}
    declared = {"photo": {"image": {"resize": [2, 3], "scale": 1 / 255}}}
    with pytest.raises(TooManyRejects, match="4 of 200 records were rejected"):
        build(data, tmp_path / "none", transform=declared)
    done = build(data, tmp_path / "out", transform=declared, max_rejects=4)
    rejects = rejects_of(done)
    assert sorted(reject["place"] for reject in rejects) == [
        "record 107",
        "record 157",
        "record 57",
        "record 7",
    ]
    assert {reject["reason"] for reject in rejects} == {"transform"}
    assert "secret" not in json.dumps(rejects)
    made = recordmill.open(tmp_path / "out")
    assert made.schema["photo"].describe() == "float32 [2, 3, 3]"
    np.testing.assert_allclose(made.to_numpy()["photo"][0, 0, 0], [0, 128 / 255, 1])
    assert len(made) == 196


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
    done = build(
        tmp_path / "all.csv", tmp_path / "new", transform_from=tmp_path / "out", max_rejects=2
    )
    rejects = rejects_of(done)
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


def test_manifest_of_a_build_without_transform_has_none(inputs: Path, tmp_path: Path) -> None:
    build(inputs, tmp_path / "out", num_shards=1)
    text = (tmp_path / "out/manifest.json").read_text()
    assert "transform" not in json.loads(text)
    assert Manifest.from_json(text).transform == {}
    assert load_manifest(tmp_path / "out").records == {"train": ROWS}
    with pytest.raises(UsageError, match="was built without a transform"):
        build(inputs, tmp_path / "other", transform_from=tmp_path / "out")


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
    declared: dict[str, Any] = {name: {"from": source} for name, source in steps.items()}
    for name, step in (
        ("large", {"bucketize": 4}),
        ("larger", {"bucketize": 4}),
        ("z", "zscore"),
        ("m", "minmax"),
    ):
        declared[name] |= step if isinstance(step, dict) else {step: True}
    made = build(
        data, tmp_path / "out", transform={**declared, "word": "vocabulary", "many": "keep"}
    )
    found = recordmill.open(made.out).to_table().sort_by("many")
    for name in ("large", "larger"):
        assert np.bincount(found[name].to_numpy(), minlength=4) == pytest.approx(250, abs=10)
    finite = floats[2:]
    np.testing.assert_array_equal(found["m"].to_numpy()[2:], ((finite - 2) / 997).astype("f4"))
    np.testing.assert_allclose(found["z"].to_numpy()[2:], zscore(finite, finite), rtol=1e-6)
    assert np.isnan(found["m"].to_numpy()[0])
    assert found["word"].to_pylist()[:2] == [2, 2]
    counts = load_manifest(made.out).transform["found"]
    assert (counts["z"]["nonfinite"], counts["m"]["nonfinite"], counts["word"]["unlisted"]) == (
        2,
        2,
        2,
    )
    said = "\n".join(note for note in made.notes if note.startswith("transform: feature"))
    assert "'z': 2 values are NaN or infinite" in said
    assert "'word': 2 words are empty or contain a line break" in said
    assert "'large'" not in said


def test_value_outside_the_domain_of_a_step_is_a_reject(tmp_path: Path) -> None:
    data = {
        "id": np.arange(8),
        "l": [0.5, -1.0, -3.0, 2.0, float("nan"), 1.0, 1.0, 1.0],
        "o": [0, 1, 1, 2**40, 2, -1, 5, 2],
        "b": [0.5, 1.0, 1.0, 2.0, 2.5, 1.0, 1.0, float("nan")],
    }
    declared = {"l": "log1p", "o": {"one_hot": 3}, "b": {"bucketize": 2}}
    made = build(data, tmp_path / "out", transform=declared, max_rejects=6)
    assert sorted(recordmill.open(made.out).to_table()["id"].to_pylist()) == [
        0,
        4,
    ]  # NaN stays what it was
    reasons = [
        json.loads(line)["message"]
        for path in made.rejects
        for line in Path(path).read_text().splitlines()
    ]
    assert sorted(reasons) == sorted(
        ["the transform refuses it: feature 'l': log1p gives no finite number for it"] * 2
        + ["the transform refuses it: feature 'o': one_hot has no class for it: not one of 0 to 2"]
        * 3
        + ["the transform refuses it: feature 'b': bucketize has no bucket for NaN"]
    )
