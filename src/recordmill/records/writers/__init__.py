"""RecordBatches in, files of Parquet, NumPy, Arrow, JSON lines, CSV or single records out."""
