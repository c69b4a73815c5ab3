"""Order of the records for training, and their division into steps."""
