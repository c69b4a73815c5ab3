"""`croissant.json` is valid for mlcroissant and describes the shards and their features."""

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import pytest
from kit.image_samples import encode_image
from kit.worker_steps import Steps

import recordmill
from recordmill.base.errors import UsageError
from recordmill.commands.main import run
from recordmill.schemas.croissant import Description, croissant_json
from recordmill.schemas.feature import DTYPES, Feature, Schema

SAID = {
    "description": "Four rows, made by hand.",
    "license": "CC-BY-4.0",
    "citation": "@misc{rows}",
    "url": "https://example.org/rows",
    "creator": "Example",
}
ABOUT = Description(**SAID)
SCHEMA = Schema(
    (
        *(Feature(dtype, dtype) for dtype in (*DTYPES, "timestamp[us, UTC]")),
        Feature("label", "int64", (), True, ("cat", "dög")),
        Feature("tensor", "uint8", (None, 28, 3)),
        Feature("odd name/ü\n\"'{}", "int64"),
        Feature("split", "string"),
        Feature("image", "bytes"),
    ),
    "label",
)
PATTERNS = {
    "train": "data-x/train-?????-of-?????.tfrecord",
    "te.st": "data-x/te.st-?????-of-?????.tfrecord",
}


def document(**more: Any) -> dict[str, Any]:
    return croissant_json(
        "rows",
        ABOUT,
        SCHEMA,
        PATTERNS,
        version="1.0.0",
        published="2026-01-02",
        images=("image",),
        **more,
    )


def fields(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (records,) = (a_set for a_set in content["recordSet"] if a_set["@id"] == "records")
    return {field["name"]: field for field in records["field"]}


def issues(content: dict[str, Any], folder: Path) -> tuple[list[str], list[str]]:
    """(errors, warnings) of mlcroissant."""
    mlcroissant = pytest.importorskip(
        "mlcroissant", reason="pip install mlcroissant: Croissant's own validator"
    )
    path = folder / "croissant.json"
    path.write_text(json.dumps(content))
    try:
        found = mlcroissant.Dataset(jsonld=path).metadata.ctx.issues
    except mlcroissant.ValidationError as error:
        return [str(error)], []
    return list(found.errors), list(found.warnings)


def test_mlcroissant_reports_no_errors_or_warnings(tmp_path: Path) -> None:
    assert issues(document(), tmp_path) == ([], [])


def test_each_feature_becomes_a_field_of_its_type() -> None:
    content = document()
    found = fields(content)
    assert found.keys() == {*SCHEMA.names, "split_"}
    assert found["uint16"]["dataType"] == "cr:UInt16"
    assert found["float32"]["dataType"] == "cr:Float32"
    assert found["bool"]["dataType"] == "sc:Boolean"
    assert found["image"]["dataType"] == "sc:ImageObject"
    assert (found["tensor"]["isArray"], found["tensor"]["arrayShape"]) == (True, "-1,28,3")
    assert found["label"]["dataType"] == ["cr:Int64", "cr:Label"]
    assert found["label"]["description"] == "numbers of classes: 0 cat, 1 dög"
    assert found["timestamp[us, UTC]"]["description"].startswith("time in us since 1970-01-01 UTC")
    assert all(re.fullmatch(r"records/[\w.%~-]+", found[name]["@id"]) for name in SCHEMA.names)
    assert all(found[name]["source"]["extract"] == {"column": name} for name in SCHEMA.names)
    assert (
        re.match(found["split_"]["source"]["transform"]["regex"], "te.st-00001-of-00002.tfrecord")[
            1
        ]
        == "te.st"
    )  # type: ignore[index]


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("MIT", "https://spdx.org/licenses/MIT.html"),
        ("https://example.org/terms", "https://example.org/terms"),
        ("for members only", {"@type": "sc:CreativeWork", "name": "for members only"}),
        ("proprietary", {"@type": "sc:CreativeWork", "name": "proprietary"}),
    ],
)
def test_spdx_licence_is_written_as_its_url(given: str, written: Any, tmp_path: Path) -> None:
    about = Description(**{**SAID, "license": given})
    content = croissant_json(
        "rows", about, SCHEMA, PATTERNS, version="1.0.0", published="2026-01-02"
    )
    assert content["license"] == written


def test_build_writes_croissant_json_and_a_build_without_url_removes_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "in" / "cat").mkdir(parents=True)
    for number in range(10):
        (tmp_path / "in" / "cat" / f"{number}.png").write_bytes(encode_image("PNG"))
    out = tmp_path / "out"
    options: dict[str, Any] = {
        "splits": "train=0.5,test=0.5",
        "num_shards": 2,
        "compression": "gzip",
    }
    first = recordmill.build(tmp_path / "in", out, **SAID, **options)
    content = json.loads((out / "croissant.json").read_text())
    assert (content["name"], content["url"], content["citeAs"]) == (
        "out",
        SAID["url"],
        SAID["citation"],
    )
    assert content["datePublished"] == first.manifest.run["finished"][:10]
    assert fields(content)["image"]["dataType"] == "sc:ImageObject"
    (files,) = content["distribution"]
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    found = {name for pattern in files["includes"] for name in fnmatch.filter(names, pattern)}
    assert found == {Path(path).relative_to(out).as_posix() for path in first.shards}
    info = json.loads((out / "dataset_info.json").read_text())
    assert (info["description"], info["citation"]) == (SAID["description"], SAID["citation"])
    assert info["redistributionInfo"] == {"license": "CC-BY-4.0"}
    assert info["location"] == {"urls": [SAID["url"]]}
    assert recordmill.verify(out) == []

    second = recordmill.build(tmp_path / "in", out, overwrite=True, **SAID, **options)
    content = json.loads((out / "croissant.json").read_text())
    assert content["version"] == "2.0.0"
    assert content["distribution"][0]["includes"][0].startswith(
        f"{second.manifest.parts[0].folder}/"
    )
    recordmill.build(tmp_path / "in", out, overwrite=True, license="MIT", **options)
    assert not (out / "croissant.json").exists()
    assert json.loads((out / "dataset_info.json").read_text())["redistributionInfo"] == {
        "license": "MIT"
    }
    assert recordmill.verify(out) == []


def test_descriptions_change_neither_shards_nor_fingerprint(tmp_path: Path) -> None:
    one = recordmill.build({"x": [1, 2]}, tmp_path / "one", name="same", **SAID)
    other = recordmill.build({"x": [1, 2]}, tmp_path / "other", name="same")
    assert [path.read_bytes() for path in one.shards] == [
        path.read_bytes() for path in other.shards
    ]
    assert one.manifest.fingerprint == other.manifest.fingerprint
    assert not (tmp_path / "other" / "croissant.json").exists()


def test_build_by_workers_writes_the_same_croissant_json(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n2\n3\n")
    one = recordmill.build(tmp_path / "in.csv", tmp_path / "one", name="same", **SAID)
    out = tmp_path / "many"
    steps = Steps.begin(tmp_path / "in.csv", str(out), tmp_path / "private", name="same", **SAID)
    found = steps.ingest_all()
    placed = steps.rename_shards(steps.write_shards(steps.merge_runs(found)))
    manifest = steps.finish(steps.merge_runs(found), placed)
    written = (out / "croissant.json").read_text()
    expected = (tmp_path / "one" / "croissant.json").read_text()
    assert written.replace(manifest.parts[0].folder, "") == expected.replace(
        one.manifest.parts[0].folder, ""
    )
    (out / "croissant.json").unlink()
    steps.finish(steps.merge_runs(found), placed)  # an engine repeats a step
    assert (out / "croissant.json").read_text() == written


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "https://example.org"}, "url=.* needs creator="),
        ({"creator": "me"}, "creator=.* needs url="),
        (
            {"url": "https://example.org", "creator": "me"},
            "croissant.json needs description= and license=, too",
        ),
        ({**SAID, "url": "example.org"}, "give the page of the data set"),
        ({**SAID, "license": " "}, "license=.*the text is empty"),
        ({"description": 3}, "description=3: the text is empty; give a text"),
    ],
    ids=str,
)
def test_invalid_description_options_are_refused_before_input_is_read(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        recordmill.build("nothing.csv", tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_description_flags_reach_croissant_json_and_tensorflow_datasets(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n2\n3\n")
    flags = [word for name, value in SAID.items() for word in (f"--{name}", value)]
    assert (
        run(["build", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out"), "--quiet", *flags])
        == 0
    )
    assert json.loads((tmp_path / "out" / "croissant.json").read_text())["license"].startswith(
        "https://spdx.org"
    )
    tfds = pytest.importorskip("tensorflow_datasets", reason="needs TensorFlow Datasets")
    info = tfds.builder_from_directory(tmp_path / "out").info
    assert (info.description, info.citation) == (SAID["description"], SAID["citation"])


def test_croissant_json_of_plain_bytes_records_describes_them_as_bytes(tmp_path: Path) -> None:
    content = croissant_json(
        "x",
        ABOUT,
        Schema((Feature("record", "bytes", (), True),), message="bytes"),
        PATTERNS,
        version="1.0.0",
        published="2026-01-02",
    )
    assert content["distribution"][0]["description"] == "TFRecord files whose records are bytes"
