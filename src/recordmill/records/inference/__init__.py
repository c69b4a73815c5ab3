"""Inference of a Schema from the contents of records without a schema."""
