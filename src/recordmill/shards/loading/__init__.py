"""Decoding of pieces of shards as RecordBatches, and inference of schemas."""
