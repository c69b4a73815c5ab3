"""The report of a data set shows its records, is one self-contained file, and treats no value as
markup.
"""

import base64
import functools
import io
import os
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from kit.batches import table_of
from kit.data_sets import write_data_set
from kit.image_samples import encoded, picture

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.reader.report import markup
from recordmill.reader.report.markup import render_bar, render_text
from recordmill.reader.report.samples import read_sample, sample_images
from recordmill.schemas.feature import Feature, Schema

VOID = {"meta", "br", "img", "line", "path", "bar"}


class Page(HTMLParser):
    """The texts of a page, what it would load, and its tags, which must close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.images: list[bytes] = []
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "data", "action"):
                self.loads.append(value or "")
                if value and value.startswith("data:"):
                    self.images.append(base64.b64decode(value.partition(",")[2]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open[-1] != "style":
            self.texts.append(data.strip())

    def after(self, words: str, count: int = 1) -> list[str]:
        at = self.texts.index(words)
        return self.texts[at + 1 : at + 1 + count]


def page_of(html: str) -> Page:
    page = Page(html)
    assert all(one.startswith(("#", "data:image/jpeg;base64,")) for one in page.loads)
    assert not page.tags & {"script", "link", "iframe", "object", "form", "base"}
    assert "default-src 'none'" in html
    return page


def test_report_shows_counts_and_values_of_the_records(tmp_path: Path) -> None:
    schema = Schema(
        (
            Feature("y", "int64", required=True, classes=("cat", "dog")),
            Feature("x", "float32"),
            Feature("word", "string"),
        ),
        label="y",
    )
    rows = {"y": [0, 1, 1, 1], "x": [1.0, 2.0, None, 4.0], "word": ["a", "b", "b", "b"]}
    other = {"y": [0], "x": [0.5], "word": ["c"]}
    ds = recordmill.open(write_data_set(tmp_path / "set", {"train": rows, "test": other}, schema))
    page = page_of(ds.report().html)
    assert page.after("records") == ["5"]
    assert page.after("train", 2) == ["4", "80 %"]
    assert "2 classes of" in page.texts
    assert page.after("dog", 2) == ["3", "0"]
    assert (
        page.texts.count("20 %") == 2
    )  # of the test split, and of the values of x that are missing
    assert "'b'" in page.texts
    view = page_of(ds.filter("y = 1").report().html)
    assert view.after("records") == ["3"]


def one_column(folder: Path, dtype: str, x: Sequence[Any]) -> recordmill.Dataset:
    return recordmill.open(
        write_data_set(folder / "set", {"train": {"x": x}}, Schema((Feature("x", dtype),)))
    )


def report_of(
    folder: Path, features: Sequence[Feature], label: str | None = None, **columns: Sequence[Any]
) -> str:
    """The page of a data set of these columns, of which the first half is the split `train`."""
    schema = Schema(tuple(features), label=label)
    rows = table_of(columns, schema)
    half = len(rows) // 2
    splits = {"train": rows.slice(0, half), "test": rows.slice(half)}
    return recordmill.open(write_data_set(folder / "set", splits, schema)).report().html


def heights(html: str, at: int = 0) -> list[set[str]]:
    """Of each line of a histogram, how far up its steps are."""
    svg = re.findall("<svg.*?</svg>", html)[at]
    return [
        set(re.findall(r"L[\d.]+ ([\d.]+)H", path))
        for path in re.findall('<path.*? d="(.*?)"', svg)
    ]


def test_bars_of_integers_are_as_high_as_their_frequency(tmp_path: Path) -> None:
    months = [*range(1, 13)] * 5 + [*range(3, 13)] * 6
    html = report_of(tmp_path, [Feature("month", "int64")], month=months)
    (train, test) = heights(html)
    assert (
        len(train) == 1
    )  # 12 months of as many records, where ten buckets had two months in the outer ones
    assert len(test) == 2  # and none of the first two months
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
    empty = one_column(tmp_path / "empty", "string", ["", "", "a"])
    assert page_of(empty.report().html).after("0 B to 1 B, 0.33333 B on average", 4) == [
        "''",
        "2",
        "a",
        "1",
    ]
    assert empty.statistics["train"]["x"].row()[-1] == "'' (2, 66.67 %), a (1, 33.33 %)"
    assert not {"000", "001xxxxxxxxxx"} & set(page.texts)
    assert "3 B to 13 B, 8 B on average" in page.texts
    assert "3 B" in page.texts
    assert any(one.startswith("1 to 3 values, 1.9") for one in page.texts)
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


def test_unusual_images_come_first(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def photo(height: int, width: int, light: int, seed: int = 0) -> bytes:
        fine = np.random.default_rng(seed).integers(0, 256, (6, 6, 3)).astype(np.uint8)
        pixels = PIL.Image.fromarray(fine).resize((width, height), PIL.Image.Resampling.BICUBIC)
        dark = PIL.Image.fromarray((np.asarray(pixels) * (light / 255)).astype(np.uint8))
        return encoded("JPEG", dark, quality=90)

    plain = [photo(64, 64, 200, seed=10 + int(n)) for n in random.permutation(20)]
    odd = [photo(400, 300, 190, seed=90), photo(20, 20, 190, seed=91), photo(64, 64, 10, seed=92)]
    schema = Schema(
        (Feature("image", "bytes"), Feature("y", "int64", classes=("cat", "dog"))), label="y"
    )
    values = [*plain, *odd, b"\xff\xd8\xff no image"]
    rows = {"image": values, "y": [0] * 23 + [1]}
    ds = recordmill.open(write_data_set(tmp_path / "set", {"train": rows}, schema))
    sample = sample_images(ds.records, "image", ("cat", "dog"), np.arange(24))
    assert [record for record, _ in sample.damaged] == [23]
    ((label, shown),) = sample.by_class()
    assert label == "cat"
    notes = {one.record: one.notes for one in shown}
    assert notes[20] == ("largest",)
    assert notes[21] == ("smallest",)
    assert "darkest" in notes[22]
    assert len(shown) == 8
    page = page_of(ds.report().html)
    assert {max(PIL.Image.open(io.BytesIO(one)).size) for one in page.images} <= {96, 64, 20}


def test_report_file_is_replaced_only_with_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_column(tmp_path, "int64", [1, 2])
    out, target = tmp_path / "set", tmp_path / "a.html"
    target.write_text("mine")
    with pytest.raises(UsageError, match="already exists; overwrite=True"):
        recordmill.report(out, out=target)
    assert main(["report", str(out), "-o", str(target)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert target.read_text() == "mine"
    for command in ("report", "stats"):
        assert main([command, str(out), "-o", str(tmp_path), "--overwrite"]) == 2
        assert f"--out {tmp_path} is a folder: name a file" in capsys.readouterr().err
        assert main([command, str(out), "-o", str(tmp_path / "no" / "a.html")]) == 2
        assert f"there is no folder {tmp_path / 'no'}" in capsys.readouterr().err
    assert main(["report", str(out), "--out", str(target), "--overwrite", "--quiet"]) == 0
    assert target.read_text() == recordmill.report(out, out=tmp_path / "b.html").html


@pytest.mark.parametrize("way", ["report", "stats", "to_parquet", "save"])
def test_pipe_is_not_replaced_and_a_link_leads_to_its_file(tmp_path: Path, way: str) -> None:
    ds = one_column(tmp_path, "int64", [1, 2])
    pipe, file, link = tmp_path / "pipe", tmp_path / "file", tmp_path / "link"
    os.mkfifo(pipe)
    file.write_text("old")
    link.symlink_to(file)

    def write(target: Path) -> object:
        if way == "save":
            return ds.report().save(target, overwrite=True)
        if way == "to_parquet":
            return ds.to_parquet(target, overwrite=True)
        return getattr(recordmill, way)(tmp_path / "set", out=target, overwrite=True)

    with pytest.raises(UsageError, match="is a pipe or a device, which can't be replaced"):
        write(pipe)
    assert pipe.is_fifo()
    write(link)
    assert link.is_symlink()
    assert file.read_bytes() != b"old"


def test_notebook_shows_the_report_in_a_sandboxed_frame(tmp_path: Path) -> None:
    shown = one_column(tmp_path, "string", ['"><script>', "b"]).report()._repr_html_()
    assert shown.startswith("<iframe sandbox ")
    assert shown.count("<") == 2  # of the frame alone


def test_histogram_of_one_value_or_none_is_empty() -> None:
    render_histogram = functools.partial(markup.render_histogram, tooltip="", ends=("a", "b"))
    assert render_histogram([[]]) == render_histogram([[], []]) == ""
    assert render_histogram([[(3.0, 3.0, 5.0)], [(3.0, 3.0, 7.0)]]) == ""  # all are equal
    assert render_histogram([[(3.0, 3.0, 5.0)], [(4.0, 4.0, 7.0)]]).count("<path") == 2
    assert render_histogram([[(0.0, 5e-324, 1.0), (5e-324, 1e-323, 2.0)]]) == ""
    assert render_histogram([[(0.0, 1.0, 1.0), (1.0, 2.0, 3.0)]]).count("H") == 2
    assert render_text("x" * 500).count("x") == 119


def test_large_records_are_sampled_few_at_a_time(tmp_path: Path) -> None:
    ds = one_column(tmp_path, "bytes", [b"a" * (3 << 20)] * 12)
    taken = [table.num_rows for _, table in read_sample(ds.records, np.arange(12), 10 << 20)]
    assert taken == [2, 2]


def test_limit_of_thumbnails_is_shared_by_image_features(tmp_path: Path) -> None:
    images = [encoded("PNG", picture(size=(8, 8), seed=seed)) for seed in range(100)]
    schema = Schema(
        (*(Feature(f"image{n}", "bytes") for n in range(3)), Feature("y", "int64")), label="y"
    )
    columns = {f"image{n}": images for n in range(3)} | {"y": list(range(100))}
    ds = recordmill.open(write_data_set(tmp_path / "set", {"train": columns}, schema))
    assert len(page_of(ds.report().html).images) == 240 + 3 * 5  # of the sample records


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


@pytest.mark.parametrize(
    ("orientation", "box"), [(1, "24.0 48.0 24.0 24.0"), (6, "24.0 24.0 24.0 24.0")]
)
def test_boxes_are_drawn_on_thumbnails_of_turned_images(
    tmp_path: Path, orientation: int, box: str
) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    packed = io.BytesIO()
    PIL.Image.new("RGB", (200, 200), "white").save(packed, "JPEG", exif=exif)
    edges = {"xmin": [0.25, 0.5], "ymin": [0.5, 2.0], "xmax": [0.5, 0.75], "ymax": [0.75, 3.0]}
    rows = {"image/encoded": [packed.getvalue()]} | {
        f"image/object/bbox/{edge}": [values] for edge, values in edges.items()
    }
    recordmill.build(rows, tmp_path / "out")
    html = recordmill.open(tmp_path / "out").report().html
    found = re.findall(r'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"', html)
    # one on the image of the sample record, and one among the images
    assert [" ".join(values) for values in found] == [box, box]
    Page(html)


def test_invalid_boxes_are_not_drawn(tmp_path: Path) -> None:
    image = encoded("PNG")
    edges = {"xmin": [[0.1], [0.1], []], "ymin": [[0.1, 0.2], [np.nan], []]}
    edges |= {"xmax": [[0.5], [0.5], []], "ymax": [[0.5], [0.5], []]}
    rows = {"image/encoded": [image] * 3} | {
        f"image/object/bbox/{edge}": values for edge, values in edges.items()
    }
    recordmill.build(rows, tmp_path / "out")
    assert "<rect" not in recordmill.open(tmp_path / "out").report().html
