"""CSV files in, typed batches out: dialect, ranges, tokens, columns."""
