"""Checks of a data set: rules, comparisons with other statistics, and repeated records.

Nothing here reads records.
"""
