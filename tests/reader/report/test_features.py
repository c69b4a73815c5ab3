"""The report has histograms of the values and sizes of each feature."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kit.batches import table_of
from kit.data_sets import write_data_set
from kit.report_pages import open_column, page_of

import recordmill
from recordmill.reader.report.markup import render_bar
from recordmill.schemas.feature import Feature, Schema


def report_of(
    folder: Path, features: Sequence[Feature], label: str | None = None, **columns: Sequence[Any]
) -> str:
    """Returns the report page of a data set of these columns.

    The first half of the rows is the split `train`, and the second half is `test`.
    """
    schema = Schema(tuple(features), label=label)
    rows = table_of(columns, schema)
    half = len(rows) // 2
    splits = {"train": rows.slice(0, half), "test": rows.slice(half)}
    return recordmill.open(write_data_set(folder / "set", splits, schema)).report().html


def heights(html: str, index: int = 0) -> list[set[str]]:
    """Returns the heights of the steps of each line of a histogram."""
    svg = re.findall("<svg.*?</svg>", html)[index]
    return [
        set(re.findall(r"L[\d.]+ ([\d.]+)H", path))
        for path in re.findall('<path.*? d="(.*?)"', svg)
    ]


def test_bars_of_integers_are_as_high_as_their_frequency(tmp_path: Path) -> None:
    months = [*range(1, 13)] * 5 + [*range(3, 13)] * 6
    html = report_of(tmp_path, [Feature("month", "int64")], month=months)
    (train, test) = heights(html)
    # The 12 months have equally many records. With ten buckets, the outer ones had two months each.
    assert len(train) == 1
    assert len(test) == 2  # the first two months are missing
    assert "<title>1 to 12</title>" in html


def test_report_has_histograms_of_sizes_and_omits_unique_values(
    tmp_path: Path,
) -> None:
    texts = [f"{n:03d}" + "x" * (n % 2 * 10) for n in range(80)]
    features = [
        Feature("text", "string"),
        Feature("code", "string"),
        Feature("list", "float32", (None,)),
    ]
    html = report_of(
        tmp_path,
        features,
        text=texts,
        code=["abc"] * 80,
        list=[[1.0] * (1 + n % 3) for n in range(80)],
    )
    page = page_of(html)
    assert "each once" in page.texts
    empty = open_column(tmp_path / "empty", "string", ["", "", "a"])
    assert page_of(empty.report().html).texts_after("0 B to 1 B, 0.33333 B on average", 4) == [
        "''",
        "2",
        "a",
        "1",
    ]
    assert empty.statistics["train"]["x"].row()[-1] == "'' (2, 66.67 %), a (1, 33.33 %)"
    assert not {"000", "001xxxxxxxxxx"} & set(page.texts)
    assert "3 B to 13 B, 8 B on average" in page.texts
    assert "3 B" in page.texts
    assert any(line.startswith("1 to 3 values, 1.9") for line in page.texts)
    assert re.findall("<title>(.*?)</title>", html)[1:] == [
        "bytes of a value",
        "values of a record",
    ]


def test_report_shows_times_also_outside_the_calendar(tmp_path: Path) -> None:
    html = report_of(
        tmp_path,
        [Feature("when", "timestamp[s]")],
        when=[0, 86_400, 3600, 10**15, *([86_400 * 365] * 4)],
    )
    text = page_of(html.replace("<br>", " ")).texts
    assert "1970-01-01 00:00:00" in text
    assert "1000000000000000 s since 1970" in text


def test_class_without_records_has_no_bar() -> None:
    assert render_bar(0) == ""
    assert render_bar(0.5).count("0.5") == 1


def test_histograms_of_all_splits_share_an_axis(tmp_path: Path) -> None:
    rows = {
        "fare": np.linspace(2.5, 99.5, 200),
        "text": ["x" * (n * 100) for n in range(200)],
        "list": [[1] * (n % 9) for n in range(200)],
    }
    recordmill.build(rows, tmp_path / "out", splits="a=0.5,b=0.5")
    html = recordmill.open(tmp_path / "out").report().html
    axes = re.findall(r'<div class="axis"><span>([^<]*)</span><span>([^<]*)</span></div>', html)
    assert {("2.5", "99.5"), ("0 B", "19.4 KiB"), ("0", "8")} <= set(axes)
    assert len(axes) == html.count("<path") / 2
