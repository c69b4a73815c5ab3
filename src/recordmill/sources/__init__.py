"""Sources of records: one room per kind of input, each with the contract of `sources.common.contract`; `registry` lists
them.
"""
