"""Batches of training: planned steps, collated columns, and the form `(x, y, weights)`."""
