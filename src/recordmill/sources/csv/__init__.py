"""The source of CSV files: dialect, ranges, tokens, columns."""
