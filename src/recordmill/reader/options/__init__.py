"""Options of batches for training, and their checks."""
