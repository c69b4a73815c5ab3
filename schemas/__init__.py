"""Schemas of records, and their forms for Arrow, TensorFlow Metadata, TensorFlow Datasets and `tf.io`."""
