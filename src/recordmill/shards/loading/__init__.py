"""Pieces of shards in, RecordBatches out: in order, at scattered places, as a sample, around damage;
and the schema of what nobody described.
"""
