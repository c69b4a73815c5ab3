"""A read's result in a store: its outputs as objects, put while they are made and behind it, and the commit that names
them.
"""
