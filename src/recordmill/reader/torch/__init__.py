"""Data sets for PyTorch loaders: batches of tensors, shared by workers and ranks."""
