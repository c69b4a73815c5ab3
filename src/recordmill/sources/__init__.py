"""Kinds of input, with one package each.

`registry` lists the kinds, and `sources.common.contract` is their interface.
"""
