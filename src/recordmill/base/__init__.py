"""Helpers that know nothing of records: errors, threads, native code, memory for arrays, progress, hashes and
searches.
"""
