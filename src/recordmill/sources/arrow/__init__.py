"""What Arrow can hold in, typed batches out: Parquet files, data frames, arrays and rows of this process."""
