"""Sources of Arrow tables: Parquet files, NumPy files, and rows in memory."""
