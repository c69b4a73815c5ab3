"""recordmill: raw images, text and CSV to shuffled TFRecord shards, and any TFRecords back to Parquet and NumPy."""
