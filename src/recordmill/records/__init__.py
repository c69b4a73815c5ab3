"""Records as bytes and as columns, from TFRecords to output files."""
