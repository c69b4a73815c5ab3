"""Records that were read to batches: steps planned, columns padded, bucketed or packed, `(x, y, weights)` out."""
