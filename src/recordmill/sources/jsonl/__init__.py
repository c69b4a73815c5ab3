"""JSON lines in, typed batches out: a scan to a tape of values, a schema over all records, columns."""
