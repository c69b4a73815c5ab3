"""Checks of a data set: rules against statistics, statistics against others, records that stand in it twice. Nothing
here reads records.
"""
