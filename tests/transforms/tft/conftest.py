"""Fixtures for the tests of transforms."""

from kit.transform_sets import inputs, out, raw

__all__ = ["inputs", "out", "raw"]
