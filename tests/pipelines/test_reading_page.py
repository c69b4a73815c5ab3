"""docs/reading.md and docs/transform.md tell the truth: their blocks run, and print what stands below them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import replay

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reading.md"


def test_every_block_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tensorflow", "duckdb", "pandas"):
        pytest.importorskip(module, reason=f"the page uses {module}")
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("```console") > 8
    assert text.count("\n>>> ") > 20
    monkeypatch.chdir(tmp_path)
    assert replay(text) == text


@pytest.mark.sweep
def test_every_block_of_the_page_on_transforms_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tensorflow_transform", "keras"):
        pytest.importorskip(module, reason=f"the page uses {module}")
    text = PAGE.with_name("transform.md").read_text(encoding="utf-8")
    assert text.count("```python") > 4
    monkeypatch.chdir(tmp_path)
    assert replay(text) == text


def test_a_page_that_lies_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = """\
```python
x = 2
```

```python
>>> x + 1
4
>>> for i in range(2):
...     print(i)
>>> {}["a"]
```

```console
$ echo one in 7.5 s
two
```
"""
    truth = """\
```python
x = 2
```

```python
>>> x + 1
3
>>> for i in range(2):
...     print(i)
0
1
>>> {}["a"]
Traceback (most recent call last):
  ...
KeyError: 'a'
```

```console
$ echo one in 0.1 s
one in 0.1 s
```
"""
    assert replay(told) == truth
