"""Beam YAML pipelines write and read data sets.

Fields that cannot be features are refused.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pytest

beam = pytest.importorskip("apache_beam", reason="these PTransforms need Apache Beam")
yaml = pytest.importorskip("yaml", reason="Beam YAML needs PyYAML")
pytest.importorskip("jinja2", reason="Beam YAML needs Jinja2")

import recordmill  # noqa: E402
from recordmill.base.errors import UsageError  # noqa: E402
from recordmill.schemas.feature import Feature  # noqa: E402
from recordmill.shards.manifest import load_manifest  # noqa: E402
from recordmill.transforms.beam_yaml import schema_from_fields  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
READ = """
pipeline:
  type: chain
  transforms:
    - type: ReadFromShards
      config: {{inputs: {out}, columns: [id, word]}}
    - type: Filter
      config: {{language: python, keep: "id > 1"}}
    - type: WriteToShards
      config: {{out: {out}-kept, max_rejects: 0}}
providers:
  - include: {provider}
"""


def run(path: Path, *flags: str) -> None:
    from apache_beam.yaml import main

    main.run([f"--yaml_pipeline_file={path}", "--runner=FnApiRunner", *flags])


@pytest.mark.sweep
def test_yaml_example_writes_a_data_set_and_the_provider_reads_it(tmp_path: Path) -> None:
    out = tmp_path / "words"
    run(ROOT / "examples" / "beam_yaml.yaml", f'--jinja_variables={{"out": "{out}"}}')
    data = recordmill.open(out)
    assert sorted(data.to_table().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "word": "one", "weights": [1.5, 2.0]},
        {"id": 2, "word": "two", "weights": [0.5]},
        {"id": 3, "word": "three", "weights": [3.0]},
    ]
    assert data.schema["weights"] == Feature("weights", "float64", (None,), required=True)
    provider = ROOT / "transforms" / "beam_yaml_provider.yaml"
    providers = yaml.safe_load((ROOT / "examples" / "beam_yaml.yaml").read_text())["providers"]
    assert yaml.safe_load(provider.read_text()) == providers
    (tmp_path / "read.yaml").write_text(READ.format(out=out, provider=provider))
    run(tmp_path / "read.yaml")
    rows = recordmill.open(f"{out}-kept").to_table().to_pylist()
    assert sorted(row["word"] for row in rows) == ["three", "two"]
    assert load_manifest(f"{out}-kept").records == {"train": 2}


@pytest.mark.parametrize(
    ("hint", "dtype", "shape", "required"),
    [
        (int, "int64", (), True),
        (Optional[str], "string", (), False),  # noqa: UP045 as Beam writes it
        (bytes | None, "bytes", (), False),
        (Sequence[float], "float64", (None,), True),
        (list[bool], "bool", (None,), True),
        (beam.typehints.List[beam.typehints.List[int]], "int64", (None, None), True),
        (beam.typehints.Optional[beam.typehints.Sequence[str]], "string", (None,), False),
    ],
)
def test_field_type_becomes_a_feature(
    hint: Any, dtype: str, shape: tuple[None, ...], required: bool
) -> None:
    assert schema_from_fields([("x", hint)]).features == (
        Feature("x", dtype, shape, required=required),
    )


@pytest.mark.parametrize("hint", [Any, dict[str, int], int | str])
def test_field_type_that_no_feature_can_hold_is_refused_by_name(hint: Any) -> None:
    with pytest.raises(UsageError, match="field 'x' is of type"):
        schema_from_fields([("x", hint)])
