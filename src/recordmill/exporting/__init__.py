"""Exports shards to files of other formats, without Beam."""
