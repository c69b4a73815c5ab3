"""`croissant.json` is valid and describes the shards and their features.

mlcroissant validates it.
"""

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

OPTIONS = {
    "description": "Four rows, made by hand.",
    "license": "CC-BY-4.0",
    "citation": "@misc{rows}",
    "url": "https://example.org/rows",
    "creator": "Example",
}
DESCRIPTION = Description(**OPTIONS)
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


def document(**options: Any) -> dict[str, Any]:
    return croissant_json(
        "rows",
        DESCRIPTION,
        SCHEMA,
        PATTERNS,
        version="1.0.0",
        published="2026-01-02",
        images=("image",),
        **options,
    )


def fields(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (records,) = (
        record_set for record_set in content["recordSet"] if record_set["@id"] == "records"
    )
    return {field["name"]: field for field in records["field"]}


def issues(content: dict[str, Any], folder: Path) -> tuple[list[str], list[str]]:
    """Returns (errors, warnings) of mlcroissant."""
    mlcroissant = pytest.importorskip(
        "mlcroissant", reason="pip install mlcroissant: Croissant's own validator"
    )
    path = folder / "croissant.json"
    path.write_text(json.dumps(content))
    try:
        context_issues = mlcroissant.Dataset(jsonld=path).metadata.ctx.issues
    except mlcroissant.ValidationError as error:
        return [str(error)], []
    return list(context_issues.errors), list(context_issues.warnings)


def test_mlcroissant_reports_no_errors_or_warnings(tmp_path: Path) -> None:
    assert issues(document(), tmp_path) == ([], [])


def test_each_feature_becomes_a_field_of_its_type() -> None:
    content = document()
    fields_by_name = fields(content)
    assert fields_by_name.keys() == {*SCHEMA.names, "split_"}
    assert fields_by_name["uint16"]["dataType"] == "cr:UInt16"
    assert fields_by_name["float32"]["dataType"] == "cr:Float32"
    assert fields_by_name["bool"]["dataType"] == "sc:Boolean"
    assert fields_by_name["image"]["dataType"] == "sc:ImageObject"
    assert (fields_by_name["tensor"]["isArray"], fields_by_name["tensor"]["arrayShape"]) == (
        True,
        "-1,28,3",
    )
    assert fields_by_name["label"]["dataType"] == ["cr:Int64", "cr:Label"]
    assert fields_by_name["label"]["description"] == "numbers of classes: 0 cat, 1 dög"
    assert fields_by_name["timestamp[us, UTC]"]["description"].startswith(
        "time in us since 1970-01-01 UTC"
    )
    assert all(
        re.fullmatch(r"records/[\w.%~-]+", fields_by_name[name]["@id"]) for name in SCHEMA.names
    )
    assert all(
        fields_by_name[name]["source"]["extract"] == {"column": name} for name in SCHEMA.names
    )
    assert (
        re.match(
            fields_by_name["split_"]["source"]["transform"]["regex"],
            "te.st-00001-of-00002.tfrecord",
        )[1]
        == "te.st"
    )  # type: ignore[index]


@pytest.mark.parametrize(
    ("license", "expected"),
    [
        ("MIT", "https://spdx.org/licenses/MIT.html"),
        ("https://example.org/terms", "https://example.org/terms"),
        ("for members only", {"@type": "sc:CreativeWork", "name": "for members only"}),
        ("proprietary", {"@type": "sc:CreativeWork", "name": "proprietary"}),
    ],
)
def test_spdx_licence_is_written_as_its_url(license: str, expected: Any, tmp_path: Path) -> None:
    description = Description(**{**OPTIONS, "license": license})
    content = croissant_json(
        "rows", description, SCHEMA, PATTERNS, version="1.0.0", published="2026-01-02"
    )
    assert content["license"] == expected


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
    first = recordmill.build(tmp_path / "in", out, **OPTIONS, **options)
    content = json.loads((out / "croissant.json").read_text())
    assert (content["name"], content["url"], content["citeAs"]) == (
        "out",
        OPTIONS["url"],
        OPTIONS["citation"],
    )
    assert content["datePublished"] == first.manifest.run["finished"][:10]
    assert fields(content)["image"]["dataType"] == "sc:ImageObject"
    (files,) = content["distribution"]
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    included = {name for pattern in files["includes"] for name in fnmatch.filter(names, pattern)}
    assert included == {Path(path).relative_to(out).as_posix() for path in first.shards}
    info = json.loads((out / "dataset_info.json").read_text())
    assert (info["description"], info["citation"]) == (OPTIONS["description"], OPTIONS["citation"])
    assert info["redistributionInfo"] == {"license": "CC-BY-4.0"}
    assert info["location"] == {"urls": [OPTIONS["url"]]}
    assert recordmill.verify(out) == []

    second = recordmill.build(tmp_path / "in", out, overwrite=True, **OPTIONS, **options)
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
    described = recordmill.build({"x": [1, 2]}, tmp_path / "one", name="same", **OPTIONS)
    plain = recordmill.build({"x": [1, 2]}, tmp_path / "other", name="same")
    assert [path.read_bytes() for path in described.shards] == [
        path.read_bytes() for path in plain.shards
    ]
    assert described.manifest.fingerprint == plain.manifest.fingerprint
    assert not (tmp_path / "other" / "croissant.json").exists()


def test_build_by_workers_writes_the_same_croissant_json(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n2\n3\n")
    expected_result = recordmill.build(
        tmp_path / "in.csv", tmp_path / "one", name="same", **OPTIONS
    )
    out = tmp_path / "many"
    steps = Steps.begin(tmp_path / "in.csv", str(out), tmp_path / "private", name="same", **OPTIONS)
    plan = steps.ingest_all()
    shards = steps.rename_shards(steps.write_shards(steps.merge_runs(plan)))
    manifest = steps.finish(steps.merge_runs(plan), shards)
    text = (out / "croissant.json").read_text()
    expected = (tmp_path / "one" / "croissant.json").read_text()
    assert text.replace(manifest.parts[0].folder, "") == expected.replace(
        expected_result.manifest.parts[0].folder, ""
    )
    (out / "croissant.json").unlink()
    steps.finish(steps.merge_runs(plan), shards)  # an engine repeats a step
    assert (out / "croissant.json").read_text() == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "https://example.org"}, "url=.* needs creator="),
        ({"creator": "me"}, "creator=.* needs url="),
        (
            {"url": "https://example.org", "creator": "me"},
            "croissant.json needs description= and license=, too",
        ),
        ({**OPTIONS, "url": "example.org"}, "give the page of the data set"),
        ({**OPTIONS, "license": " "}, "license=.*the text is empty"),
        ({"description": 3}, "description=3: the text is empty; give a text"),
    ],
    ids=str,
)
def test_invalid_description_options_are_refused_before_input_is_read(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        recordmill.build("nothing.csv", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_description_flags_reach_croissant_json_and_tensorflow_datasets(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n2\n3\n")
    flags = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    assert (
        run(["build", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out"), "--quiet", *flags])
        == 0
    )
    assert json.loads((tmp_path / "out" / "croissant.json").read_text())["license"].startswith(
        "https://spdx.org"
    )
    tfds = pytest.importorskip("tensorflow_datasets", reason="needs TensorFlow Datasets")
    info = tfds.builder_from_directory(tmp_path / "out").info
    assert (info.description, info.citation) == (OPTIONS["description"], OPTIONS["citation"])


def test_croissant_json_of_plain_bytes_records_describes_them_as_bytes(tmp_path: Path) -> None:
    content = croissant_json(
        "x",
        DESCRIPTION,
        Schema((Feature("record", "bytes", (), True),), message="bytes"),
        PATTERNS,
        version="1.0.0",
        published="2026-01-02",
    )
    assert content["distribution"][0]["description"] == "TFRecord files whose records are bytes"
