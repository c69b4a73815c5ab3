"""YAML files from others have plain YAML 1.2 values and bounded contents.

Their keys are unique.
"""

from pathlib import Path
from typing import Any

import pytest

from recordmill.base.errors import UsageError
from recordmill.storage import yaml_file
from recordmill.storage.yaml_file import check_nesting, read_yaml


def read(tmp_path: Path, text: str | bytes) -> Any:
    path = tmp_path / "f.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_yaml(str(path), "rules f.yaml", "rules by feature")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NO", "NO"),
        ("yes", "yes"),
        ("true", True),
        ("FALSE", False),
        ("010", 10),
        ("0o17", 15),
        ("0xff", 255),
        ("-7", -7),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"),
        ("'12'", "12"),
        ("~", None),
        ("[1, a]", [1, "a"]),
    ],
)
def test_plain_values_follow_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    result = read(tmp_path, f"a: {text}\n")["a"]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "can't be read: line 3: 'a' occurs twice"),
        ("a: {b: 1, b: 2}\n", "can't be read: line 1: 'b' occurs twice"),
        ("- a\n", "is not a mapping of rules by feature"),
        ("", "is not a mapping of rules by feature"),
        ("a: [\n", "can't be read: line 2: "),
        ("a: !!python/object/apply:os.getcwd []\n", "can't be read: line 1: "),
        (b"a: \xff\n", "can't be read: "),
        ("[" * 5000, "is nested too deep"),
    ],
)
def test_bad_file_is_an_error_with_its_line(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"rules f.yaml: {message}")


def test_missing_or_too_large_file_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"rules: can't be read: No such file"):
        read_yaml(str(tmp_path / "none"), "rules", "rules")
    monkeypatch.setattr(yaml_file, "_MAX_BYTES", 5)
    with pytest.raises(UsageError, match="has 6 bytes, above the 5 allowed"):
        read(tmp_path, "a: 12\n")


def test_value_within_16_levels_is_accepted() -> None:
    value: Any = 1
    for _ in range(16):
        value = [value]
    check_nesting(value)
    with pytest.raises(ValueError, match="is nested too deep"):
        check_nesting([value])


def test_value_that_contains_itself_or_repeats_aliases_is_refused(tmp_path: Path) -> None:
    recursive = read(tmp_path, "a: &a [*a]\n")
    with pytest.raises(ValueError, match="or holds itself"):
        check_nesting(recursive)
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 9))
    bomb = read(tmp_path, f"l0: &l0 [x, x]\n{levels}\n")
    with pytest.raises(ValueError, match="is nested too deep"):
        check_nesting(bomb)
