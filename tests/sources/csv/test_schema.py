"""The columns of all CSV files, or a given schema, determine the schema."""

from pathlib import Path

import pytest
from kit.csv_reading import plan, read
from kit.files import write_file

from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.csv.options import CsvOptions


def test_files_with_different_columns_are_joined_by_name(tmp_path: Path) -> None:
    first, second = (
        write_file(tmp_path / "1.csv", "a,b\n1,x\n2,y\n"),
        write_file(tmp_path / "2.csv", "c,a\n0.5,3\n,4\n"),
    )
    source = plan([first, second])
    table, places, _ = read(source)
    assert table.to_pydict() == {
        "a": [1, 2, 3, 4],
        "b": ["x", "y", None, None],
        "c": [None, None, 0.5, None],
    }
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [feature.required for feature in source.schema] == [True, False, False]
    assert "column 'c': nulls: 1 empty, 2 in files without the column" in source.notes
    with pytest.raises(
        DataError,
        match=r"^4\.csv: its delimiter seems to be ';', but that of 1\.csv is ','; choose with --delimiter",
    ):
        plan([first, write_file(tmp_path / "4.csv", "a;b\n1;2\n")])


def test_declared_schema_selects_and_casts_csv_columns(tmp_path: Path) -> None:
    path = write_file(tmp_path / "in.csv", "a,b,c\n1,2,3\n,5,6\n7,x,9\n")
    source = plan(
        path,
        schema=Schema(
            (Feature("b", "int32"), Feature("a", "float64", required=True), Feature("d", "string"))
        ),
    )
    table, _, rejects = read(source)
    assert table.to_pydict() == {"b": [2], "a": [1.0], "d": [None]}
    assert [(reject.place, reject.reason) for reject in rejects] == [
        ("line 3, row 1", "null"),
        ("line 4, row 2", "type"),
    ]
    assert any("left out" in note and "c" in note for note in source.notes)
    with pytest.raises(DataError, match="'z'"):
        plan(path, schema=Schema((Feature("z", "string", required=True),)))
    with pytest.raises(UsageError, match="a CSV field holds one value"):
        plan(path, schema=Schema((Feature("a", "float32", (2,)),)))


def test_files_with_only_a_header_are_noted(tmp_path: Path) -> None:
    paths = [
        write_file(tmp_path / "0.csv", "a,b\n"),
        write_file(tmp_path / "1.csv", "a,b\n1,2\n"),
        write_file(tmp_path / "2.csv", "a,b"),
    ]
    source = plan(paths)
    assert "2 files hold a header and no rows: 0.csv, 2.csv" in source.notes
    assert read(source)[1] == [(1, 0)]
    with pytest.raises(
        DataError,
        match=r"^0\.csv: a header and no rows, or one row: .*Use --no-header .* or --header",
    ):
        plan([paths[0], paths[2]])
    with pytest.raises(
        DataError, match=r"^0\.csv: holds a header and no rows, as do the other 1 files$"
    ):
        plan([paths[0], paths[2]], CsvOptions(header=True))
