"""Order of records for training: which records each step reads, from a seed and a position."""
