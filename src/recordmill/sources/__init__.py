"""Raw inputs in, `Source`s out: one room per kind of input, all behind `sources.common.contract`;
`registry` lists them.
"""
