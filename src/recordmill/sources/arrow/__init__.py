"""Sources that Arrow reads: Parquet files, data frames, arrays and rows of this process."""
