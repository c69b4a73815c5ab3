"""Records that nobody has described in, counts of what they hold and the Schema that fits them all out."""
