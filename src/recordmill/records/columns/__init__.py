"""Columns between the decoder and a writer: conversions, images, predicates and NumPy arrays."""
