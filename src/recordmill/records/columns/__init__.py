"""Columns on their way from the decoder to a writer: NumPy forms, conversions, decoded images, predicates. RecordBatch
in, RecordBatch or arrays out.
"""
