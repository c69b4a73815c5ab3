"""What `read` does to columns on their way: NumPy forms, conversions, decoded images, predicates. RecordBatch in,
RecordBatch or arrays out.
"""
