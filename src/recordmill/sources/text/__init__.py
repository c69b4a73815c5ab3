"""Text files as a source of records, one per line or per file."""
