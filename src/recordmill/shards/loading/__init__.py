"""Decodes pieces of shards as RecordBatches and infers schemas."""
