"""Writers of RecordBatches, with one module for each output format."""
