"""JSON Lines as a source of records: values, schema and columns."""
