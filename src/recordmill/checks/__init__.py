"""Checks of a data set: rules, comparisons of statistics, and repeated records.

The code in this package works on statistics and digests. It does not read record files.
"""
