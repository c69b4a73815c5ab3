"""A data set as tf.data: fed from this process, or as a graph of TensorFlow's own operations, also as source text."""
