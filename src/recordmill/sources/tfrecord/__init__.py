"""TFRecord files as a source of records, with unchanged payloads."""
