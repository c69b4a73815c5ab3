"""Helpers that know nothing about records.

They are errors, threads, arrays, the native library, progress, hashes and texts of messages.
"""
