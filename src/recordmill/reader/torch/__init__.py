"""A data set for PyTorch's loaders: batches of tensors that workers and ranks share."""
