"""NumPy files have the records of `numpy.load`, and hostile files are refused."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.source_reading import features, read_all, values

from recordmill.base.errors import DataError, RecordmillError
from recordmill.sources.arrow import numpy_files
from recordmill.sources.arrow.memory import plan_memory
from recordmill.sources.arrow.numpy_files import NumpySource, plan_numpy
from recordmill.sources.arrow.options import NumpyOptions
from recordmill.sources.common.contract import PlanOptions
from recordmill.storage.listing import list_inputs


def plan(*paths: Path, options: NumpyOptions | None = None, **common: Any) -> NumpySource:
    return plan_numpy(
        list_inputs([str(path) for path in paths]), options or NumpyOptions(), PlanOptions(**common)
    )


def save(path: Path, write: Callable[..., None] = np.savez, /, **arrays: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    write(path, **arrays)
    return path


DTYPES = [
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(sizes=(16, 32, 64)),
    hnp.boolean_dtypes(),
    hnp.unicode_string_dtypes(max_len=5),
    hnp.byte_string_dtypes(max_len=5),
    hnp.datetime64_dtypes(min_period="s", max_period="s"),
]
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TIMES = st.integers(0, 10**9).map(lambda seconds: np.datetime64(seconds, "s"))


@st.composite
def random_arrays(draw: st.DrawFn) -> dict[str, np.ndarray[Any, Any]]:
    rows, arrays = draw(st.integers(1, 9)), {}
    for name in draw(st.sets(st.sampled_from("abc"), min_size=1)):
        dtype = draw(st.one_of(DTYPES))
        shape = (rows, *draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3)))
        items = {"U": st.text(LETTERS, max_size=dtype.itemsize // 4), "M": TIMES}.get(dtype.kind)
        array = draw(hnp.arrays(dtype, shape, elements=items))
        arrays[name] = np.asfortranarray(array) if draw(st.booleans()) else array
    return arrays


@given(
    random_arrays(),
    st.sampled_from([np.savez, np.savez_compressed]),
    st.sampled_from([1, 50, 1 << 20]),
)
def test_npz_file_has_the_rows_of_the_arrays_in_memory(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, Any], save_arrays: Any, size: int
) -> None:
    folder = tmp_path_factory.mktemp("numpy")
    if save_arrays is np.savez_compressed:
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_arrays(folder / "a.npz", **arrays)
    (folder / "spool").mkdir()
    with np.load(folder / "a.npz") as file:
        memory_source = plan_memory(dict(file), folder / "spool", PlanOptions())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_files, "UNIT_BYTES", size)
        patch.setattr(numpy_files, "BATCH_ROWS", 2)
        source = plan(folder / "a.npz")
        assert len(source.units) == 1 or save_arrays is np.savez
        rows, rejects = read_all(source)
    assert features(memory_source) == features(source)
    assert not rejects
    assert [row[1] for row in rows] == list(range(len(rows)))
    assert repr(values(rows)) == repr(values(read_all(memory_source)[0]))


@pytest.mark.parametrize("unit", ["Y", "W", "D", "h", "s", "ms", "us", "ns"])
@pytest.mark.parametrize("form", ["npy", "savez", "savez_compressed", "fields"])
def test_nat_is_null_in_every_unit_and_other_times_are_required(
    tmp_path: Path, unit: str, form: str
) -> None:
    times = np.array(["2020-01-01", "NaT", "1969-12-31"], f"datetime64[{unit}]")
    for array, kind in ((times, ""), (times[::2], "!")):
        if form == "npy":
            np.save(path := tmp_path / "t.npy", array)
        elif form == "fields":
            rows = np.zeros(len(array), [("t", array.dtype), ("i", "i4")])
            rows["t"] = array
            np.save(path := tmp_path / "r.npy", rows)
        else:
            path = save(tmp_path / "a.npz", getattr(np, form), t=array)
        source = plan(path)
        assert features(source)["t"].endswith("]" + kind)
        rows, rejects = read_all(source)
        result = [None if row["t"] is None else np.datetime64(row["t"]) for row in values(rows)]
        assert result == [None if np.isnat(time) else time for time in array.tolist() and array]
        assert not rejects


def test_single_array_is_named_like_its_file(tmp_path: Path) -> None:
    half = np.linspace(0, 1, 12, dtype=np.float16).reshape(4, 3)
    np.save(tmp_path / "half.npy", np.asfortranarray(half))
    source = plan(tmp_path / "half.npy")
    assert features(source) == {"half": "float16 [3]!"}
    assert [row["half"] for row in values(read_all(source)[0])] == np.load(
        tmp_path / "half.npy"
    ).tolist()


def test_fields_of_structured_arrays_are_features(tmp_path: Path) -> None:
    array = np.array(
        [(1, [0.5, 1], "ä"), (2, [2, 3], "")], [("i", ">i2"), ("v", "f4", 2), ("größe 東", "U2")]
    )
    np.save(tmp_path / "t.npy", array)
    save(tmp_path / "t.npz", np.savez_compressed, t=array, n=np.arange(2))
    assert values(read_all(plan(tmp_path / "t.npy"))[0])[0] == {
        "i": 1,
        "v": [0.5, 1.0],
        "größe 東": "ä",
    }
    assert features(plan(tmp_path / "t.npz")) == {
        "t.i": "int16!",
        "t.v": "float32 [2]!",
        "t.größe 東": "string!",
        "n": "int64!",
    }


X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array(list("abcabc"))


@pytest.mark.parametrize(
    ("files", "feature_names", "splits", "note"),
    [
        (
            {"m.npz": {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]}},
            "x y",
            "train 6, test 2",
            "names",
        ),
        (
            {"m.npz": {"val_images": X[:2], "Train_images": X}},
            "images",
            "validation 2, train 6",
            "arrays' names",
        ),
        ({"m.npz": {"x": X, "y": Y, "n": 3}}, "x y", "6", "left out, because they have no rows: n"),
        ({"X.npy": X, "y.npy": Y}, "X y", "6", "columns of the same rows: X.npy, y.npy"),
        (
            {"X_1.npy": X, "X_2.npy": X, "y_1.npy": Y, "y_2.npy": Y},
            "X y",
            "12",
            "columns of the same rows",
        ),
        (
            {"X_train.npy": X, "y_train.npy": Y, "X_test.npy": X, "y_test.npy": Y},
            "X y",
            "train 6, test 6",
            "file name",
        ),
        ({"0.npy": X, "1.npy": X[:1]}, "x", "7", ""),
        ({"train/x.npy": X, "test/x.npy": X[:1]}, "x", "train 6, test 1", "splits by folder"),
        (
            {
                "a.npz": {"y": Y, "x": X},
                "b.npz": {"x": X, "y": Y},
                "c.npz": {"x": X[:0], "y": Y[:0]},
            },
            "y x",
            "12",
            "",
        ),
        ({"y=3/a.npz": {"x": X}}, "x", "6", "y=..."),
    ],
)
def test_arrays_of_several_files_form_records_and_splits(
    files: dict[str, Any], feature_names: str, splits: str, note: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        if name.endswith(".npz"):
            save(make_parent(tmp_path / "in" / name), **content)
        else:
            np.save(make_parent(tmp_path / "in" / name), content)
    source = plan(tmp_path / "in")
    assert list(features(source)) == feature_names.split()
    rows, _ = read_all(source)
    counts: dict[str, int] = {}
    for file, _, row in rows:
        split = source.files[file].split
        counts[split or ""] = counts.get(split or "", 0) + 1
        assert len(row) == len(feature_names.split())
    assert sorted(f"{split} {count}".strip() for split, count in counts.items()) == sorted(
        splits.split(", ")
    )
    assert note in " ".join(source.notes)


def make_parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_numbered_parts_of_columns_stay_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_files, "UNIT_BYTES", 20)
    for part in range(3):
        np.save(tmp_path / f"X_{part}.npy", X + 100 * part)
        np.save(tmp_path / f"y_{part}.npy", np.arange(6) + 100 * part)
    rows = values(read_all(plan(tmp_path))[0])
    assert [row["X"][0] // 2 for row in rows] == [
        100 * part // 2 + n for part in range(3) for n in range(6)
    ]
    assert [row["y"] for row in rows] == [100 * part + n for part in range(3) for n in range(6)]


def test_columns_and_splits_of_arrays_are_chosen(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.npz",
        x_train=X,
        y_train=Y,
        x_test=X,
        y_test=Y,
        objects=np.array([{}]),
        words=Y[:1],
    )
    assert features(plan(path, options=NumpyOptions(columns=("x",)))) == {"x": "float32 [2]!"}
    source = plan(
        path, options=NumpyOptions(columns=("x_train", "y_train"), split_from="none"), label="y"
    )
    assert (source.schema.label, source.schema["y"].classes) == ("y", ("a", "b", "c"))
    assert [file.split for file in source.files] == [None]


def make_npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return (
        b"\x93NUMPY"
        + version
        + len(text).to_bytes(2 if version[0] == 1 else 4, "little")
        + text
        + data
    )


def make_npy_with_shape(shape: str, dtype: str = "'<i4'") -> bytes:
    return make_npy(f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}", bytes(12))


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["TMP_EVIL"],)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (make_npy_with_shape("(3,)")[:-1], "is cut off: it has 77 bytes, and its header says 78"),
        (
            make_npy_with_shape("(2,)"),
            "holds more than an array; save each to a file of its own: it has 78 bytes",
        ),
        (make_npy_with_shape("(3,)")[:40], "is not a NumPy file, or it is damaged: EOF"),
        (make_npy_with_shape("(3,)")[:5], "damaged: EOF: reading magic string"),
        (make_npy_with_shape("()"), "is a single value, and a record is a row"),
        (make_npy_with_shape("(-3,)"), r"damaged: no array has shape \(-3,\)"),
        (make_npy_with_shape("(-3, -1)"), r"damaged: no array has shape \(-3, -1\)"),
        (make_npy_with_shape("(3.0,)"), "shape is not valid"),
        (make_npy_with_shape(f"({2**70},)"), "is cut off"),
        (make_npy_with_shape(f"({2**62}, 0)")[:-12], "a row has 0 bytes, and may have from 1 to"),
        (make_npy_with_shape("(0,)", "'<i4'")[:-12], "a.npy: there are no rows"),
        (
            make_npy_with_shape("(3,)", "'|O'"),
            "holds Python objects, which only unpickling reads.*or, if you trust it, load it",
        ),
        (make_npy_with_shape("(3,)", "[('a', '<i2'), ('b', '|O')]"), "holds Python objects"),
        (make_npy_with_shape("(3,)", "('<i4', (9999999,))"), "damaged: no array has shape"),
        (make_npy_with_shape("(3,)", "'<V4'"), r"column 'a': no feature can hold NumPy's \|V4"),
        (make_npy_with_shape("(1,)", "'<c8'")[:-4], "no feature can hold NumPy's complex64"),
        (make_npy_with_shape("(3,)", "'nonsense'"), "is not a NumPy file, or it is damaged"),
        (make_npy_with_shape(f"(0, {2**63}, 0)")[:-12], "is damaged: "),
        (make_npy_with_shape(f"(3{', 1' * 99})"), "is damaged: maximum supported dimension"),
        (make_npy_with_shape(f"({'9' * 5000},)"), "is not a NumPy file, or it is damaged"),
        (make_npy("[" * 5000), "is not a NumPy file, or it is damaged"),
        (make_npy("{" + " " * 20000 + "}"), "is not a NumPy file, or it is damaged"),
        (make_npy("{}", version=b"\x09\x00"), "is not a NumPy file, or it is damaged"),
        (make_npy_with_shape("(1,)", "'<U3'").replace(bytes(12), b"\xff" * 12), "is damaged: "),
        (
            make_npy_with_shape("(1,)", "'<U3'").replace(bytes(12), b"\0\xd8\0\0" * 3),
            "is damaged: ",
        ),
        (
            make_npy(
                f"{{'descr': '|u1', 'fortran_order': False, 'shape': (1, {1 << 25})}}",
                bytes(1 << 25),
            ),
            "see --memory",
        ),
    ],
)
def test_damaged_or_hostile_array_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_all(plan(tmp_path / "a.npy", memory_bytes=100 << 20))
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", data)
    with pytest.raises(
        DataError,
        match="there are no rows"
        if data == make_npy_with_shape("()") or len(data) < 6
        else r"^b\.npz: ",
    ):
        read_all(plan(tmp_path / "b.npz", memory_bytes=100 << 20))


def test_pickled_arrays_are_never_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMP_EVIL", str(tmp_path / "evil"))
    np.save(tmp_path / "a.npy", np.array([Evil()], object), allow_pickle=True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Evil()))
    for name in ("a.npy", "b.npy"):
        with pytest.raises(RecordmillError):
            plan(tmp_path / name)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("files", "columns", "message"),
    [
        (
            {"a": {"x": X, "y": Y[:4]}},
            None,
            "a.npz: 'y' has 4 rows, and 'x' 6: a record is one of each",
        ),
        (
            {"a": {"x": X}, "b": {"z": X}},
            None,
            "b.npz: has no 'x', but a.npz; --columns names those to take, or save",
        ),
        ({"a": {"x": X}, "b": {"x": X, "z": X}}, None, "b.npz: has 'z', unlike a.npz"),
        ({"a": {"x_train": X, "y_train": Y, "x_test": X}}, None, "a.npz: has no 'y', but a.npz"),
        (
            {"a": {"x": X, "o": np.array([{}] * 6)}},
            None,
            "a.npz: array 'o.npy': holds Python objects",
        ),
        ({"a": {"x": X}}, ("y",), "--columns: no column 'y'; there are x"),
        ({"a": {"x": X}, "b": {"x": Y}}, None, "'x' is string here, but float32"),
        ({"a": {"x": X[:0]}}, None, "a.npz: there are no rows"),
        ({"a": {"n": 3}}, None, "a.npz: there are no rows"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    files: Any, columns: Any, message: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        save(tmp_path / f"{name}.npz", **content)
    with pytest.raises(RecordmillError, match=message.replace("(", r"\(")):
        plan(tmp_path, options=NumpyOptions(columns=columns))


def test_array_files_of_one_form_are_refused_as_ambiguous(tmp_path: Path) -> None:
    np.save(tmp_path / "cat.npy", X)
    np.save(tmp_path / "dog.npy", X)
    with pytest.raises(
        DataError,
        match=r"cat\.npy, dog\.npy: rows of one form may be columns, parts or classes; save",
    ):
        plan(tmp_path)
    np.save(tmp_path / "dog.npy", Y[:5])
    with pytest.raises(DataError, match="'dog' has 5 rows, and 'cat' 6"):
        plan(tmp_path)


def test_damaged_member_of_an_npz_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(256, size=(4000, 9), dtype=np.uint8)
    content = save(tmp_path / "a.npz", np.savez_compressed, x=noise).read_bytes()
    path = tmp_path / "b.npz"
    for data, message in [
        (
            content[:20_000] + bytes(9) + content[20_009:],
            r"b\.npz: array 'x\.npy': damaged at rows \d+ to \d+",
        ),
        (content[:20_000], r"b\.npz: is not a NumPy file, or it is damaged"),
        (content.replace(b"PK\1\2", b"PK\1\3"), r"b\.npz: is not a NumPy file, or it is damaged"),
    ]:
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            read_all(plan(path))
    stored_path = save(tmp_path / "c.npz", x=noise)
    source = plan(stored_path)
    stored_path.write_bytes(stored_path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"c\.npz: changed while it was read"):
        list(source.read(source.units[0]))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", make_npy_with_shape("(3,)"))
    with pytest.raises(
        DataError, match=r"b\.npz: .*'x\.npy' is packed by another method than deflate"
    ):
        plan(path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", make_npy_with_shape("(3,)"))
        archive.writestr("note.txt", "no array")
    path.write_bytes(buffer.getvalue())
    assert plan(path).notes == ("left out, because they have no rows: note.txt",)
