"""A data set as tf.data: fed from this process, or as a TensorFlow graph."""
