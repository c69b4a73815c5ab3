"""Fixtures for the tests of commands."""

from kit.command_sets import out

__all__ = ["out"]
