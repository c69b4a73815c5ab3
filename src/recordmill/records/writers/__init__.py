"""Writers of RecordBatches to Parquet, NumPy, Arrow, JSON lines, CSV or a file per record."""
