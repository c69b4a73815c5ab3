"""Footers of Parquet files that contradict themselves: an error that names the file, where pyarrow ends the process."""

from __future__ import annotations

import base64
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from recordmill.base.errors import DataError
from recordmill.sources.arrow.footer import null_counts
from recordmill.sources.arrow.parquet import ParquetOptions, plan_parquet
from recordmill.sources.common.contract import PlanOptions
from recordmill.storage.listing import list_inputs

CORPUS = Path(__file__).parents[1] / "faults" / "corpus" / "parquet"


def plan(path: Path) -> None:
    plan_parquet(list_inputs([str(path)]).files, ParquetOptions(), PlanOptions())


@pytest.mark.parametrize("name", ["histogram_of_repetition_levels", "histogram_of_definition_levels"])
def test_sizes_that_contradict_the_schema_are_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes((CORPUS / name).read_bytes())
    with pytest.raises(DataError, match=r"a\.parquet.*histogram size mismatch"):
        plan(path)


def test_statistics_of_another_type_say_nothing(tmp_path: Path) -> None:
    """INT64 with a least value of three bytes, of which pyarrow's accessor ends the process."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [0x0102030405060708]}), path, use_dictionary=False, compression="none")
    data = path.read_bytes()
    value = b"\x08" + bytes.fromhex("0807060504030201")
    at = data.rindex(value)
    cut = data[:at] + b"\x03" + value[1:4] + data[at + len(value) : -8]
    footer = int.from_bytes(data[-8:-4], "little") - (len(data) - 8 - len(cut))
    path.write_bytes(cut + footer.to_bytes(4, "little") + b"PAR1")
    plan(path)


def test_encrypted_columns_are_an_error(tmp_path: Path) -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption", reason="this pyarrow has no encryption")

    class Keys(encryption.KmsClient):  # type: ignore[misc, name-defined]
        def wrap_key(self, key: bytes, name: str) -> bytes:
            return base64.b64encode(key)

        def unwrap_key(self, wrapped: bytes, name: str) -> bytes:
            return base64.b64decode(wrapped)

    how = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=True, double_wrapping=False
    )
    factory = encryption.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    table = pa.table({"secret": [1, 2], "open": [3, 4]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"a\.parquet.*[Ee]ncrypt|[Dd]ecrypt"):
        plan(tmp_path / "a.parquet")


@given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.none() | st.text(max_size=3)), min_size=1, max_size=30))
def test_null_counts_are_those_of_the_rows(rows: list[tuple[int | None, str | None]]) -> None:
    table = pa.table(
        {"a": pa.array([a for a, _ in rows], pa.int64()), "b": pa.array([b for _, b in rows], pa.string())}
    )
    for statistics in (True, ["b"], False):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=7, write_statistics=statistics)
        about = pq.read_metadata(pa.BufferReader(sink.getvalue()))
        assert null_counts(about, [0, 1]) == {
            0: table["a"].null_count if statistics is True else -1,
            1: table["b"].null_count if statistics else -1,
        }
