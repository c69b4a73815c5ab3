"""Helpers that know nothing about records.

The modules are about errors, threads, arrays, the native library, progress, hashes and texts of
messages.
"""
