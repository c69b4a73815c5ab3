"""Raw inputs in, `Source`s out: one room per kind of input, all behind `sources.inputs.contract`;
`registry` lists them.
"""
