"""Encoded images of a batch, and what is wanted of them (`Images`), to pixels of one size: the same by every face."""
