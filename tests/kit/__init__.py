"""Helpers that several test files use, a module for each subject."""
