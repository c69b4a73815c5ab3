"""The values of NAME=VALUE folders become columns of the records in them."""

from pathlib import Path
from typing import Any

import pytest
from kit.source_reading import input_files

from recordmill.base.errors import UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common.contract import PlanOptions, Source
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.values.column_join import (
    join_folder_columns,
    options_for_columns,
    plan_text_columns,
)
from recordmill.storage.listing import list_inputs


def plan(root: Path, columns: list[str] | None = None, **common: Any) -> Source:
    options = CsvOptions(columns=columns)
    return join_folder_columns(
        lambda files, common: plan_csv(files, options, common),
        list_inputs([str(root)]).files,
        PlanOptions(**common),
        options=options,
    )


def read_rows(source: Source) -> list[dict[str, Any]]:
    chunks = [chunk for unit in source.units for chunk in source.read(unit)]
    rows = [row for chunk in chunks for row in chunk.records.to_pylist()]  # type: ignore[union-attr]
    return sorted(rows, key=lambda row: row["id"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Writes two files in folders of a year and a word.

    Each file has two records.
    """
    for number, folder in enumerate(("year=2023/kind=cat", "year=2024/kind=dog")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.csv").write_text(f"id\n{2 * number}\n{2 * number + 1}\n")
    return tmp_path


def test_values_of_folders_are_columns_of_each_record(root: Path) -> None:
    source = plan(root)
    assert [(feature.name, feature.dtype) for feature in source.schema] == [
        ("id", "int64"),
        ("year", "int64"),
        ("kind", "string"),
    ]
    assert read_rows(source) == [
        {"id": row, "year": 2023 + row // 2, "kind": ("cat", "dog")[row // 2]} for row in range(4)
    ]


def test_columns_that_are_not_selected_are_not_joined(root: Path) -> None:
    assert plan(root, ["id"]).schema.names == ("id",)


def test_column_of_the_files_has_precedence_and_is_noted(root: Path) -> None:
    for path in root.rglob("*.csv"):
        _, *rows = path.read_text().splitlines()
        path.write_text("".join(f"{line}\n" for line in ["id,year", *(f"{row},7" for row in rows)]))
    source = plan(root)
    assert {row["year"] for row in read_rows(source)} == {7}
    assert any(
        note == "year: the files have a column of this name, so the names of folders are ignored"
        for note in source.notes
    )


def test_label_may_be_the_value_of_a_folder(root: Path) -> None:
    source = plan(root, label="kind")
    assert source.schema.label == "kind"
    assert source.schema["kind"].classes == ("cat", "dog")
    assert [row["kind"] for row in read_rows(source)] == [0, 0, 1, 1]


def test_value_that_does_not_fit_the_declared_dtype_is_a_reject(root: Path) -> None:
    source = plan(root, dtypes={"year": "int8"})
    chunks = [chunk for unit in source.units for chunk in source.read(unit)]
    rejects = [reject for chunk in chunks for reject in chunk.rejects]
    assert sum(chunk.rows for chunk in chunks) == 0
    assert {reject.reason for reject in rejects} == {"range"}
    assert len({(reject.source, reject.place) for reject in rejects}) == 4


def test_files_without_such_folders_are_planned_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    source = plan(tmp_path)
    assert source.schema.names == ("id",)
    assert type(source).__name__ == "CsvSource"


def test_options_are_restricted_to_the_kept_columns() -> None:
    schema = Schema((Feature("a", "int64"), Feature("b", "int64")), label="b")
    common = PlanOptions(
        schema=schema,
        dtypes={"a": "int8", "b": "int16"},
        label="b",
        droppable_features=frozenset("ab"),
    )
    options = options_for_columns(common, "a".__contains__)
    assert options.schema is not None
    assert (options.schema.names, options.dtypes, options.label) == (("a",), {"a": "int8"}, None)
    assert options.droppable_features == frozenset("a")


def test_text_columns_with_numbers_are_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,path\n1,007\n2,8\n")
    files = input_files(tmp_path / "a.csv")

    def plan_files(files: Any, common: PlanOptions) -> Source:
        return plan_csv(files, CsvOptions(), common)

    source = plan_text_columns(files, PlanOptions(), plan_files, ["path"], "labels_path_column")
    (chunk,) = [chunk for unit in source.units for chunk in source.read(unit)]
    assert chunk.records.column("path").to_pylist() == ["007", "8"]  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="--labels-path-column"):
        plan_text_columns(files, PlanOptions(), plan_files, ["missing"], "labels_path_column")
