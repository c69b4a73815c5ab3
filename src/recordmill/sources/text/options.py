"""Options of text files."""

from __future__ import annotations

from typing import Literal

from recordmill.options.declare import declare
from recordmill.sources.common.options import ClassOptions, LineOptions


class TextOptions(
    ClassOptions, LineOptions, heading="text, JSONL, CSV and tables of images", decides=True
):
    """Options of text files.

    Attributes:
        mode: `auto` selects documents if folders determine classes or if there are several small
            files, else lines.
        blank_lines: Whether lines of white space are records. Blank documents are always kept.
    """

    mode: Literal["auto", "lines", "documents"] = declare(
        "whether a record is a line or a file",
        default="auto",
        default_text="detected",
        flag="--text-mode",
        common=True,
    )
    blank_lines: bool = declare(
        "do not make records of lines that have only white space",
        default=True,
        excludes=(("mode", "documents"),),
    )
