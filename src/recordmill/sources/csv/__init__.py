"""CSV files as a source of records."""
