"""Reading and decoding of records on threads ahead of the consumer."""
