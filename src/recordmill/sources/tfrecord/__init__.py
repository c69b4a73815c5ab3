"""TFRecord files to a `Source`: their records as they are."""
