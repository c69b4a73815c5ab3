"""Detected properties of CSV files, and plans of them."""

from pathlib import Path
from typing import Any

from kit.source_reading import input_files
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.csv.head import CsvHead, read_head
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.sniff_header import agree_on_header
from recordmill.sources.csv.source import CsvSource, plan_csv


def detect_head(path: Path, **options: Any) -> CsvHead:
    """Returns the detected head of a file, after the check of its header."""
    head = read_head(input_files(path)[0], CsvOptions(**options))
    agree_on_header([head.first_row] if head.first_row is not None else [])
    return head


def plan(*paths: Path, **options: Any) -> CsvSource:
    return plan_csv(input_files(*paths), CsvOptions(**options), PlanOptions())
