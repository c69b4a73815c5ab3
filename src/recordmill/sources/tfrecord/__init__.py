"""The source of TFRecord files: their records as they are."""
