"""Helpers that several test files use, a module for each subject."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the repository
