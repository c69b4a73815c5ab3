"""Schemas of records, and their forms for Arrow, TensorFlow Metadata, TFDS and Croissant."""
