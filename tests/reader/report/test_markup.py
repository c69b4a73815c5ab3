"""Names and values never become HTML."""

import functools
from pathlib import Path

from kit.data_sets import write_data_set
from kit.report_pages import page_of

import recordmill
from recordmill.reader.report import markup
from recordmill.reader.report.markup import render_text
from recordmill.schemas.feature import Feature, Schema

HOSTILE = [
    "</script><script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "\u202eevil\x00",
    "a" * 10_000,
]


def test_names_and_values_are_escaped(tmp_path: Path) -> None:
    names = ["<b>", 'a"b', "\u202e"]
    schema = Schema(tuple(Feature(name, "string") for name in names))
    out = write_data_set(tmp_path / "set", {"train": dict.fromkeys(names, HOSTILE)}, schema)
    html = recordmill.open(out).report().html
    page = page_of(html)
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert len(html) < 100_000
    assert not set(html) & {"\u202e", "\x00"}


def test_histogram_of_one_value_or_none_is_empty() -> None:
    render_histogram = functools.partial(markup.render_histogram, tooltip="", ends=("a", "b"))
    assert render_histogram([[]]) == render_histogram([[], []]) == ""
    assert render_histogram([[(3.0, 3.0, 5.0)], [(3.0, 3.0, 7.0)]]) == ""  # all are equal
    assert render_histogram([[(3.0, 3.0, 5.0)], [(4.0, 4.0, 7.0)]]).count("<path") == 2
    assert render_histogram([[(0.0, 5e-324, 1.0), (5e-324, 1e-323, 2.0)]]) == ""
    assert render_histogram([[(0.0, 1.0, 1.0), (1.0, 2.0, 3.0)]]).count("H") == 2
    assert render_text("x" * 500).count("x") == 119
