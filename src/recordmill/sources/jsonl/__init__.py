"""The source of JSON lines: a scan to a tape of values, a schema over all records, columns."""
