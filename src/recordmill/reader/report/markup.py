"""HTML and SVG elements of a report. All texts are escaped.

A page contains everything that it shows. It loads no scripts, fonts or images, and its
Content-Security-Policy forbids browsers to load any. Its colours follow the light or dark mode of
the browser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape

STYLE = """
:root{color-scheme:light dark;--back:#fff;--ink:#1c2126;--pale:#667;--line:#dde;--soft:#d5e4f4;--c0:#2f6fb3;
--c1:#d9822b;--c2:#3a9a5f;--c3:#9a4fb0}
@media screen and (prefers-color-scheme:dark){:root{--back:#14171b;--ink:#e4e6ea;--pale:#9aa;--line:#333a44;
--soft:#25405c;--c0:#6aa9e6;--c1:#f0a860;--c2:#6fcf97;--c3:#cf8ee0}}
body{background:var(--back);color:var(--ink);font:14px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1800px;
padding:16px}
pre{background:var(--soft);padding:8px;white-space:pre-wrap;user-select:all}
h1{font-size:24px;margin:8px 0}h2{font-size:18px;border-bottom:1px solid var(--line);margin:28px 0 8px}
h3{font-size:14px;margin:14px 0 4px}
p{margin:4px 0}.pale{color:var(--pale)}nav a{color:var(--c0);margin-right:12px}
.wide{overflow-x:auto}table{border-collapse:collapse}
th,td{border-bottom:1px solid var(--line);padding:3px 10px 3px 0;text-align:left;vertical-align:top}
th{color:var(--pale);font-weight:500}td.n{font-variant-numeric:tabular-nums;text-align:right;white-space:nowrap}
.bar{background:var(--c0);display:inline-block;height:10px;min-width:1px;font-size:240px}
.top{background:linear-gradient(var(--soft),var(--soft)) no-repeat;display:flex;gap:12px;
justify-content:space-between;margin-bottom:2px;min-width:180px;padding:0 4px}
.top span{font-variant-numeric:tabular-nums}
.bar,.top,svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.c1{background:var(--c1)}.c2{background:var(--c2)}.c3{background:var(--c3)}
svg{display:block}.axis{color:var(--pale);display:flex;font-size:11px;gap:8px;justify-content:space-between;
width:160px}figure svg{position:absolute;left:1px;top:1px}figure{position:relative}svg rect{fill:none;stroke:var(--c1);stroke-width:1.5}
svg path{fill:none;stroke-width:1.5}path.c0{stroke:var(--c0)}path.c1{stroke:var(--c1);background:none}
path.c2{stroke:var(--c2)}path.c3{stroke:var(--c3)}svg line{stroke:var(--line)}
bdi{overflow-wrap:break-word}td{max-width:420px}th.n{text-align:right}
figure{display:inline-block;margin:0 8px 8px 0;vertical-align:top;width:112px}
figure img{border:1px solid var(--line);max-width:110px}figcaption{color:var(--pale);font-size:11px;line-height:1.25}
#records td+td{min-width:110px}#records td+td bdi{overflow-wrap:anywhere}
@media screen and (max-width:600px){.bar{font-size:110px}.rows thead{display:none}.rows tr{display:block;padding:6px 0}
.rows td{border:0;display:block;max-width:none;text-align:left}.rows tr{border-bottom:1px solid var(--line)}
.rows td:empty{display:none}.rows td[data-of]::before{color:var(--pale);content:attr(data-of) ": "}}
@page{margin:12mm;size:landscape}
@media print{body{font-size:11px;max-width:none;padding:0}.wide{overflow:visible}h2{break-after:avoid}
tr,figure{break-inside:avoid}nav{display:none}}
"""


_MAX_CHARACTERS = 120  # length of a shown text; longer text is cut
_WIDTH, _HEIGHT = 160, 36  # size of a histogram, in pixels
# Smallest range of values that a histogram shows. In a smaller one, the width of a pixel is too
# small to be added to a value.
_MIN_SPAN = 1e-300
_TAG, _DATA_OF = re.compile(r"<[^>]*>"), ' data-of="{}"'
NUM_COLOURS = 4  # number of splits that a histogram shows


def render_text(value: object) -> str:
    r"""Returns a value as HTML. Long text is cut.

    Characters that are invisible, or that change the direction of the text, appear as escapes.

    >>> render_text("a<b\x00")
    '<bdi>a&lt;b\\x00</bdi>'
    """
    text = str(value)
    cut = text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
    return f"<bdi>{escape(''.join(character if character.isprintable() else repr(character)[1:-1] for character in cut))}</bdi>"


def format_number(value: float | int | None) -> str:
    """Formats an integer with commas, or a float with five digits.

    >>> format_number(1234567), format_number(0.123456789), format_number(None)
    ('1,234,567', '0.12346', '')
    """
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def format_plain_number(value: float | int | None) -> str:
    """Formats a value of a feature.

    Integers have no commas, because they may be years or codes.

    >>> format_plain_number(2013), format_plain_number(0.123456789)
    ('2013', '0.12346')
    """
    return str(value) if isinstance(value, int) else format_number(value)


def format_range(minimum: float, maximum: float, unit: str) -> str:
    """Formats a range with its unit, in the plural form.

    >>> format_range(1, 1, "bytes"), format_range(3, 1200, "bytes")
    ('1 byte', '3 to 1,200 bytes')
    """
    if minimum == maximum:
        return f"{format_number(minimum)} {unit.removesuffix('s') if minimum == 1 else unit}"
    return f"{format_number(minimum)} to {format_number(maximum)} {unit}"


def render_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()
) -> str:
    """Returns a table. Narrow screens show each row as a list.

    Args:
        header: Names of the columns, as HTML. Empty for a table without names.
        rows: Cells of each row, as HTML.
        numbers: Indices of the columns that contain numbers.
    """
    head = "".join(
        f'<th class="n">{name}</th>' if i in numbers else f"<th>{name}</th>"
        for i, name in enumerate(header)
    )
    names = [_DATA_OF.format(_TAG.sub("", name)) if name else "" for name in header[1:]]
    attributes = [' class="n"' * (i in numbers) + name for i, name in enumerate(["", *names])]
    body = "".join(f"<tr>{''.join(_cells(row, attributes))}</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if header else ""
    rows_class = ' class="rows"' if header else ""
    return f'<div class="wide"><table{rows_class}>{top}<tbody>{body}</tbody></table></div>'


def _cells(row: Sequence[str], attributes: Sequence[str]) -> Iterator[str]:
    for i, cell in enumerate(row):
        yield f"<td{attributes[i] if i < len(attributes) else ''}>{cell}</td>"


def render_bar(share: float, colour: int = 0) -> str:
    """Returns a bar, or "" for a share of 0.

    Args:
        share: Length of the bar as a share of the longest one.
        colour: Index of the colour.
    """
    return (
        f'<span class="bar c{colour}" style="width:{min(share, 1.0):.3g}em"></span>'
        if share > 0
        else ""
    )


def render_frequent_value(name: str, share: float, count: str) -> str:
    """Returns a value and its count, on top of a bar of its share.

    Args:
        name: The value, as HTML.
        share: Share of the values, from 0 to 1.
        count: The count as text.
    """
    return f'<div class="top" style="background-size:{100 * min(share, 1.0):.3g}% 100%">{name}<span>{count}</span></div>'


HistogramBuckets = Sequence[tuple[float, float, float]]  # low, high, count


def render_histogram(
    series: Sequence[HistogramBuckets], tooltip: str, ends: tuple[str, str]
) -> str:
    """Returns an SVG with one line per histogram, above an axis with its ends.

    Each line encloses the same area, so that histograms of different counts can be compared. The
    result is "" if all values are in the same bucket.

    Args:
        series: The histograms. More than NUM_COLOURS are ignored.
        tooltip: Text of the tooltip.
        ends: The smallest and the largest value, as text for the ends of the axis.
    """
    lines = []
    nonempty = [
        buckets for buckets in series[:NUM_COLOURS] if any(count for _, _, count in buckets)
    ]
    minimum = min((buckets[0][0] for buckets in nonempty), default=0.0)
    span = max((buckets[-1][1] for buckets in nonempty), default=0.0) - minimum
    if (
        len({(low, high) for buckets in nonempty for low, high, _ in buckets}) < 2
        or span < _MIN_SPAN
    ):
        return ""
    for colour, buckets in enumerate(series[:NUM_COLOURS]):
        if total := sum(count for _, _, count in buckets):
            # a bucket without width is drawn one pixel wide
            shares = [
                (low, high, count / total / max(high - low, span / _WIDTH))
                for low, high, count in buckets
            ]
            lines.append((colour, shares))
    tallest = max(density for _, shares in lines for _, _, density in shares)
    paths = []
    for colour, shares in lines:
        points = [f"M{_format_x(shares[0][0], minimum, span)} {_HEIGHT}"]
        for low, high, density in shares:
            up = f"{_HEIGHT - density / tallest * (_HEIGHT - 2):.1f}"
            points.append(
                f"L{_format_x(low, minimum, span)} {up}H{_format_x(max(high, low + span / _WIDTH), minimum, span)}"
            )
        paths.append(f'<path class="c{colour}" d="{"".join(points)}V{_HEIGHT}"/>')
    ticks = "".join(
        f'<line x1="{x}" x2="{x}" y1="{_HEIGHT}" y2="{_HEIGHT + 4}"/>' for x in (0.5, _WIDTH - 0.5)
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT + 4}" role="img"><title>{escape(tooltip)}</title>'
        f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>{ticks}{"".join(paths)}</svg>'
        f'<div class="axis"><span>{escape(ends[0])}</span><span>{escape(ends[1])}</span></div>'
    )


def _format_x(value: float, minimum: float, span: float) -> str:
    return f"{(value - minimum) / span * _WIDTH:.1f}"


def render_section(name: str, title: str, *parts: str) -> str:
    """Returns a section with a heading.

    Args:
        name: Anchor for the links at the top of the page.
        title: The heading.
        *parts: Content of the section, as HTML.
    """
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def render_page(title: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """Returns a complete page.

    Args:
        title: Title of the page.
        sections: (anchor, heading, HTML) of each section.
    """
    links = "".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in sections)
    body = "".join(render_section(name, heading, inner) for name, heading, inner in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><h1>{render_text(title)}</h1><nav>{links}</nav>{body}</body></html>\n"
    )
