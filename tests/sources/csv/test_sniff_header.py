"""The first row is a header only if it has names.

No row is lost.
"""

from pathlib import Path

import pytest
from kit.csv_detection import detect_head, plan
from kit.csv_dialects import UCI
from kit.source_reading import input_files

from recordmill.base.errors import DataError
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv


def test_header_is_detected_if_a_name_is_text_above_numbers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,x,c\n1,2.5,c\n2,3.5,d\n3,1.5,c\n")
    assert detect_head(path).first_row.guess.verdict == "header"
    for first in ("id,2,c", "1,2,c"):  # one name, or none
        path.write_text(f"{first}\n1,2.5,c\n2,3.5,d\n3,1.5,c\n")
        with pytest.raises(DataError, match="looks like data"):
            detect_head(path)


@pytest.mark.parametrize("name", UCI)
def test_file_without_a_header_loses_no_row(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(UCI[name].encode())
    with pytest.raises(DataError, match=r"--no-header.*--header"):
        plan(path)
    source = plan(path, header=False)
    first = next(source.read(source.units[0])).records
    assert first.num_rows == UCI[name].count("\n")
    assert source.schema.names[0] == "column_1"


def test_header_may_begin_with_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("#chrom\tstart\tend\nchr1\t1\t2\nchr2\t3\t4\n")
    assert plan(path).schema.names == ("#chrom", "start", "end")


def test_several_files_must_have_the_same_header(tmp_path: Path) -> None:
    texts = {
        "1": "id,name\n1,x\n",
        "2": "id,name\n",
        "3": "hello,world\ngood,bye\n",
        "4": "2,y\n3,z\n",
    }
    paths = {name: tmp_path / f"{name}.csv" for name in texts}
    for name, path in paths.items():
        path.write_bytes(texts[name].encode())
    assert plan(paths["1"], paths["2"]).notes[0].startswith("detected (and 1 more file alike)")
    with pytest.raises(
        DataError, match=r"^4\.csv: the first row looks like data.*unlike that of 1\.csv, a header"
    ):
        plan(paths["4"], paths["1"])
    with pytest.raises(DataError, match=r"^3\.csv: the first row may be a header or data"):
        plan(paths["1"], paths["3"])


def test_equal_first_rows_are_not_treated_as_a_header(tmp_path: Path) -> None:
    """Files without a header may begin with the same row, which both would lose."""
    paths = [tmp_path / "1.csv", tmp_path / "2.csv"]
    for path, second in zip(paths, ("good,bye", "fare,well"), strict=True):
        path.write_text(f"hello,world\n{second}\n")
    with pytest.raises(
        DataError, match=r"^1\.csv: the first row may be a header or data.*--no-header.*--header"
    ):
        plan(*paths)
    assert plan(*paths, header=True).schema.names == ("hello", "world")
    assert sum(unit.rows or 0 for unit in plan(*paths, header=False).units) == 4


def test_first_row_with_a_name_from_an_option_is_a_header(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"hello,1990\ngood,1\nbad,2\n")
    source = plan_csv(input_files(path), CsvOptions(), PlanOptions(label="hello"))
    assert source.schema.names == ("hello", "1990")
    assert "it contains the names that were given" in source.notes[0]
