"""Records as bytes and as columns: a room for each step between a TFRecord file and the arrays and files
that people work with.
"""
