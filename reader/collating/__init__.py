"""What a batch is given as: columns by name in, columns padded, bucketed or packed, and `(x, y, weights)`, out."""
