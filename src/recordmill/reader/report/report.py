"""Report on a data set as one HTML page.

The page shows splits, classes, features, sample records and images, rejects, and the provenance of
the data set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recordmill.base.arguments import suggest_fields
from recordmill.base.buffers import Int64s
from recordmill.base.sizes import format_count, format_percent, format_size
from recordmill.reader.display import show_value
from recordmill.reader.images.columns import detect_image_features
from recordmill.reader.report import samples
from recordmill.reader.report.features import render_features
from recordmill.reader.report.markup import (
    NUM_COLOURS,
    format_number,
    render_bar,
    render_page,
    render_table,
    render_text,
)
from recordmill.reader.statistics import count_statistics, read_stored_statistics
from recordmill.records.images.header import BadImage
from recordmill.shards.rejects import describe_reason
from recordmill.statistics.dataset_statistics import DatasetStatistics
from recordmill.statistics.feature_statistics import format_value
from recordmill.storage.files import put_bytes
from recordmill.storage.folders import check_output_file

if TYPE_CHECKING:
    from recordmill.reader.records import Records
    from recordmill.shards.manifest import Manifest

_MAX_CLASSES = 1000  # rows of the table of classes
_MAX_RECORDS, _MAX_RECORD_FEATURES = 5, 100
_MAX_DAMAGED = 20  # images that are listed with their reason
# The sandbox isolates the page from the notebook.
_IFRAME = '<iframe sandbox title="recordmill report" style="width:100%;height:720px;border:0" srcdoc="{}"></iframe>'


@suggest_fields
@dataclass(frozen=True)
class Report:
    """HTML page about a data set. Notebooks display it.

    Attributes:
        html: Source of the page.
    """

    html: str

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the page to a file, which appears only when it is complete.

        Args:
            path: The file, or an object in a store.
            overwrite: If True, an existing file is replaced.

        Raises:
            UsageError: The file exists already, or can't be written.
        """
        put_bytes(check_output_file(path, overwrite), self.html.encode())

    def _repr_html_(self) -> str:
        return _IFRAME.format(escape(self.html))


def make_report(dataset: Records, progress: Callable[[int], None] | None = None) -> Report:
    """Creates the report on a data set.

    If the build has stored no statistics, all records are read. Sample records and images come from
    at most 1,000 records, which are always the same for the same data set.

    Args:
        progress: Called with the number of records of each load, if all records are read.

    Raises:
        DataError: A record is damaged.
    """
    statistics = read_stored_statistics(dataset)
    if statistics is None:
        statistics = DatasetStatistics.from_sketch(count_statistics(dataset, progress))
    manifest, numbers = dataset.catalog.manifest, samples.draw_sample_numbers(dataset)
    images = _image_samples(dataset, numbers)
    name = manifest.name if manifest is not None else "TFRecord files"
    sections = [
        ("overview", "Overview", _render_overview(dataset, statistics, manifest)),
        (
            "splits",
            "Splits and classes",
            _render_splits(statistics) + _render_classes(dataset, statistics),
        ),
        ("features", "Features", render_features(dataset.schema, statistics)),
        (
            "records",
            "Sample records",
            _render_records(dataset, numbers, [sample.feature for sample in images]),
        ),
        *(
            (
                "images" + str(i),
                f"Images: {sample.feature}",
                _render_images(sample, samples.MAX_THUMBNAILS // len(images)),
            )
            for i, sample in enumerate(images)
        ),
    ]
    if manifest is not None:
        sections += [
            ("rejects", "Rejects", _render_rejects(manifest)),
            ("made", "How it was made", _render_provenance(manifest)),
        ]
    return Report(render_page(name, sections))


def _image_samples(dataset: Records, numbers: Int64s) -> list[samples.ImageSample]:
    schema = dataset.encoded_view.schema
    labels = None if schema.label is None else schema[schema.label].classes
    return [
        samples.sample_images(dataset.encoded_view, name, labels, numbers)
        for name in detect_image_features(dataset.encoded_view)
    ]


def _render_overview(
    dataset: Records, statistics: DatasetStatistics, manifest: Manifest | None
) -> str:
    records = sum(statistics.records.values())
    rows = [
        ("records", f"{records:,}"),
        ("features", f"{len(dataset.schema):,}"),
        ("shards", f"{len(dataset.files):,}"),
        ("bytes", format_size(sum(file.file.stat.size_bytes for file in dataset.files))),
        ("label", render_text(dataset.schema.label or "none")),
        ("record", render_text(dataset.schema.message)),
        ("fingerprint of the shards", render_text(dataset.fingerprint)),
    ]
    if manifest is None:
        rows.append(
            (
                "manifest",
                "none: these files are not recordmill's, and all figures are counted by reading them",
            )
        )
    return render_table((), rows)


def _render_splits(statistics: DatasetStatistics) -> str:
    total = max(sum(statistics.records.values()), 1)
    rows = [
        (
            render_text(split),
            format_number(count),
            format_percent(count / total),
            render_bar(count / total, i % NUM_COLOURS),
        )
        for i, (split, count) in enumerate(statistics.records.items())
    ]
    return render_table(("split", "records", "share", ""), rows, (1, 2))


def _render_classes(dataset: Records, statistics: DatasetStatistics) -> str:
    label = dataset.schema.label
    if label is None:
        return '<p class="pale">No feature is the label.</p>'
    by_split = {
        split: features[label] for split, features in statistics.items() if label in features
    }
    counts: dict[str, dict[str, int]] = {}
    for split, figures in by_split.items():
        for value, count in figures.top_values.items():
            counts.setdefault(value, {})[split] = count
    if not counts:
        return f'<p class="pale">The label {render_text(label)} has no classes: its values are numbers.</p>'
    feature = dataset.schema[label]
    totals = {split: max(figures.values, 1) for split, figures in by_split.items()}
    # the longest bar has the full width
    max_share = max(
        count / totals[split]
        for counts_of_class in counts.values()
        for split, count in counts_of_class.items()
    )
    ordered = sorted(
        counts,
        key=lambda value: (
            -sum(counts[value].values()),
            format_value(value, feature),
        ),
    )
    rows = [
        (
            render_text(format_value(value, feature)),
            *(format_number(count) for count in class_counts),
            *(
                format_percent(count / totals[split])
                for split, count in zip(by_split, class_counts, strict=True)
            ),
            "<br>".join(
                render_bar(count / totals[split] / max_share, i % NUM_COLOURS)
                for i, (split, count) in enumerate(zip(by_split, class_counts, strict=True))
            ),
        )
        for value in ordered[:_MAX_CLASSES]
        for class_counts in [[counts[value].get(split, 0) for split in by_split]]
    ]
    remainder = (
        f"<p>{len(ordered) - _MAX_CLASSES:,} more classes</p>"
        if len(ordered) > _MAX_CLASSES
        else ""
    )
    caveat = (
        ""
        if all(figures.top_values_are_exact for figures in by_split.values())
        else "<p>counts are estimates</p>"
    )
    header = (
        "class",
        *map(render_text, by_split),
        *(f"share of {render_text(split)}" for split in by_split),
        "",
    )
    return (
        f"<h3>{len(ordered):,} classes of {render_text(label)}</h3>"
        + caveat
        + render_table(header, rows, range(1, len(header) - 1))
        + remainder
    )


def _render_records(dataset: Records, numbers: Int64s, images: Sequence[str]) -> str:
    if not len(numbers):
        return "<p>There are no records.</p>"
    records = numbers[
        np.linspace(0, len(numbers) - 1, min(_MAX_RECORDS, len(numbers))).astype(np.int64)
    ]
    view = dataset.encoded_view.select(
        list(dataset.encoded_view.schema.names)[:_MAX_RECORD_FEATURES]
    )
    table = view.take(records).combine_chunks()
    batches = table.to_batches()
    rows = []
    for column, feature in enumerate(view.schema):
        values = [
            batch.column(column).slice(row, 1) for batch in batches for row in range(batch.num_rows)
        ]
        cells = [render_text(show_value(value, feature)) for value in values]
        if feature.name in images:
            edge_names = samples.find_box_columns(dataset, feature.name)
            edges = dataset.encoded_view.select(edge_names).take(records) if edge_names else table
            boxes = samples.read_boxes(edges, edge_names)
            cells = [
                _render_thumbnail(value[0].as_py(), record_boxes) + cell
                for value, record_boxes, cell in zip(values, boxes, cells, strict=True)
            ]
        rows.append((render_text(feature.name), *cells))
    num_omitted = len(dataset.schema) - len(rows)
    return render_table(
        ("feature", *(f"record {record:,}" for record in records.tolist())), rows
    ) + (f"<p>{num_omitted:,} more features</p>" if num_omitted else "")


def _render_thumbnail(image: bytes | None, boxes: npt.NDArray[np.float64]) -> str:
    if image is None:
        return ""
    try:
        thumbnail = samples.make_thumbnail(image, boxes=boxes)
    except BadImage:
        return ""  # the text next to it describes the damage
    return f"<figure>{_render_pixels(thumbnail, '')}</figure><br>"


def _render_images(sample: samples.ImageSample, max_images: int) -> str:
    parts = [
        f"<p>A sample of {len(sample.images) + len(sample.damaged):,} images, drawn by the fingerprint. "
        "Those that stand out are first.</p>"
    ]
    for label, images in sample.by_class(max(max_images, 1)):
        parts.append(
            (f"<h3>{render_text(label)}</h3>" if label else "")
            + "".join(map(_render_figure, images))
        )
    if sample.damaged:
        paragraphs = "".join(
            f"<p>record {record:,}: {render_text(reason)}</p>"
            for record, reason in sample.damaged[:_MAX_DAMAGED]
        )
        parts.append(f"<h3>{len(sample.damaged):,} that can't be decoded</h3>{paragraphs}")
    return "".join(parts)


def _render_figure(thumbnail: samples.Thumbnail) -> str:
    lines = [
        f"record {thumbnail.record:,}",
        f"{thumbnail.height:,} x {thumbnail.width:,} pixels",
        *map(escape, thumbnail.notes),
    ]
    image = _render_pixels(thumbnail, f"record {thumbnail.record}")
    return f"<figure>{image}<figcaption>{'<br>'.join(lines)}</figcaption></figure>"


def _render_pixels(thumbnail: samples.Thumbnail, description: str) -> str:
    """Returns the small image, with its boxes drawn on top."""
    image = f'<img alt="{description}" src="{thumbnail.source}">'
    rectangles = "".join(
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"></rect>'
        for left, top, right, bottom in thumbnail.boxes
    )
    if not rectangles:
        return image
    return f'{image}<svg width="96" height="96" role="img"><title>boxes</title>{rectangles}</svg>'


def _render_rejects(manifest: Manifest) -> str:
    reasons: Mapping[str, Any] = manifest.rejects.get("reasons", {})
    count = manifest.rejects.get("count", 0)
    if not count:
        return "<p>No record was rejected.</p>"
    files = ", ".join(render_text(name) for name in manifest.rejects.get("files", ())[:10])
    rejected = f"{format_count(count, 'record')} {'was' if count == 1 else 'were'} rejected"
    return f"<p>{rejected}; the list is in {files}.</p>" + render_table(
        ("reason", "records"),
        [
            (render_text(describe_reason(reason)), format_number(times))
            for reason, times in reasons.items()
        ],
        (1,),
    )


def _render_provenance(manifest: Manifest) -> str:
    read = [
        {"kind": part.kind, "records_read": part.records_read, **part.inputs}
        for part in manifest.parts
    ]
    inputs = dict(enumerate(read, 1)) if len(read) > 1 else {**read[0]} if read else {}
    facts = _flatten(
        {
            "fingerprint of the input and its options": manifest.fingerprint,
            "inputs": inputs,
            "options": manifest.options,
            "run": manifest.run,
        }
    )
    return render_table((), [(render_text(name), render_text(value)) for name, value in facts])


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    elif value is not None:
        yield (
            name,
            format_size(value) if name.endswith("bytes") and isinstance(value, int) else value,
        )
