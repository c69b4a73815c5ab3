"""Decoding of encoded images into pixels of one size, shared by NumPy, tf.data and PyTorch."""
