"""What is expected of a data set, and what of it is not so: rules against statistics, statistics against others,
records that stand in it twice. Nothing here reads records.
"""
