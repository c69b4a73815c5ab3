"""Direct builds write files of one record to shards without a sort.

A build that sorts has equal results.
"""

import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.files import tree
from kit.image_samples import samples
from kit.runs import use_key_bits

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.building import file_records
from recordmill.pipelines.build import BuildResult
from recordmill.shards import rejects

BROKEN = b"\xff\xfe no UTF-8 \xff"


@contextmanager
def always_sort() -> Iterator[None]:
    """Makes builds inside the `with` block sort all records."""
    from recordmill.building import local_build

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_build, "plan_without_sort", lambda plan: None)
        yield


def content(result: BuildResult) -> dict[str, bytes]:
    """Returns the files and rejects of a data set, without its run's id."""
    out = Path(result.out)
    data = next(out.glob("data-*"))
    files = tree(data)
    # The names of the data folder and of the reject files contain the id of the run.
    manifest = json.loads((out / "manifest.json").read_text().replace(data.name, "data-RUN"))
    files["manifest"] = json.dumps(
        {**manifest, "run": {}, "rejects": manifest["rejects"]["reasons"]}
    ).encode()
    files["rejects"] = b"".join(Path(path).read_bytes() for path in result.rejects)
    return files


def outcome(source: Path, out: Path, options: dict[str, Any]) -> dict[str, bytes] | str:
    """Returns the built files, or the error message of a failed build."""
    try:
        return content(recordmill.build(source, out, **options))
    except RecordmillError as error:
        assert not out.exists()
        return str(error).replace(str(out), "OUT")
    finally:
        shutil.rmtree(out, ignore_errors=True)


def build_both_ways(source: Path, root: Path, **options: Any) -> dict[str, bytes] | str:
    """Returns the outcome of a direct build.

    Checks that a build that sorts has the same outcome.
    """
    direct = outcome(source, root / "out", options)
    with always_sort():
        assert direct == outcome(source, root / "out", options)
    return direct


def write_documents(folder: Path, seed: int, files: int, num_broken: int, size: int) -> None:
    dice = random.Random(seed)
    broken_numbers = set(dice.sample(range(files), min(num_broken, files)))
    for number in range(files):
        path = folder / f"class{number % 3}" / f"{number:04d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            BROKEN if number in broken_numbers else b"word %d " % number * dice.randrange(size)
        )


@pytest.mark.sweep
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    files=st.integers(1, 60),
    num_broken=st.sampled_from([0, 0, 1, 2, 20, 60]),
    size=st.sampled_from([1, 20, 400]),
    shards=st.one_of(
        st.fixed_dictionaries({"num_shards": st.integers(1, 12)}),
        st.fixed_dictionaries({"shard_size": st.sampled_from([1, 90, 500, 10_000])}),
    ),
    splits=st.sampled_from([{}, {"splits": {"train": 0.7, "test": 0.3}}]),
    shuffle=st.booleans(),
    compression=st.sampled_from(["none", "none", "none", "gzip"]),
    max_rejects=st.sampled_from([0, "100%", "100%"]),
)
def test_direct_build_of_documents_equals_the_build_that_sorts(
    seed: int,
    files: int,
    num_broken: int,
    size: int,
    shards: dict[str, int],
    splits: dict[str, Any],
    shuffle: bool,
    compression: str,
    max_rejects: Any,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in")
        write_documents(source, seed, files, num_broken, size)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(file_records, "BATCH_BYTES", 1500)
            patched.setattr(file_records, "BATCH_FILES", 7)
            build_both_ways(
                source,
                Path(folder),
                kind="text",
                mode="documents",
                shuffle=shuffle,
                compression=compression,
                max_rejects=max_rejects,
                threads=2,
                name="set",
                **shards,
                **splits,
            )


@pytest.mark.parametrize(
    "options", [{"num_shards": 4}, {"num_shards": 9, "key_bits": 2}, {"shard_size": 2000}]
)
def test_direct_build_of_images_with_labels_and_rejects_equals_the_build_that_sorts(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    images = [data for data, _ in samples().values()]
    for number in range(40):
        path = tmp_path / "in" / f"{number:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        data = images[number % len(images)]
        path.write_bytes(data[: len(data) // 2] if number in (3, 17, 39) else data)
    rows = "".join(
        f"{number:02d}.jpg,{'even' if number % 2 == 0 else 'odd'},{number}\n"
        for number in range(40)
    )
    (tmp_path / "labels.csv").write_text("file,label,size\n" + rows)
    bits = options.pop("key_bits", 64)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_records, "BATCH_BYTES", 5000)
        use_key_bits(patched, bits)
        files = build_both_ways(
            tmp_path / "in",
            tmp_path,
            kind="images",
            labels=str(tmp_path / "labels.csv"),
            max_rejects=5,
            threads=3,
            name="set",
            **options,
        )
    assert isinstance(files, dict)
    assert files["rejects"].count(b"\n") >= 3


def test_direct_build_ends_early_only_over_the_reject_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(tmp_path / "in", 1, 40, 30, 20)
    message = build_both_ways(
        tmp_path / "in", tmp_path, kind="text", mode="documents", max_rejects=3, threads=1
    )
    assert (
        "30 of 40 records were rejected (reason: wrong encoding); max_rejects=3 allows fewer"
        in message
    )
    monkeypatch.setattr(rejects, "REJECTS_BEYOND_BUDGET", 2)
    monkeypatch.setattr(file_records, "BATCH_FILES", 2)
    with pytest.raises(
        RecordmillError,
        match=r"at least \d+ records were rejected .* so the rest was not read",
    ):
        recordmill.build(
            tmp_path / "in", tmp_path / "out", kind="text", mode="documents", max_rejects=3
        )
    assert not (tmp_path / "out").exists()


def test_file_that_changes_during_the_build_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(tmp_path / "in", 5, 5, 0, 300)
    read_file_batch = file_records.read_file_batch

    def change_and_read(plan: Any, stripe: Any, *arguments: Any) -> Any:
        (tmp_path / "in" / "class1" / "0001.txt").write_text("another")
        return read_file_batch(plan, stripe, *arguments)

    monkeypatch.setattr(file_records, "read_file_batch", change_and_read)
    with pytest.raises(RecordmillError, match=r"class1/0001\.txt: changed while it was read"):
        recordmill.build(tmp_path / "in", tmp_path / "out", kind="text", mode="documents")
    assert not (tmp_path / "out").exists()
