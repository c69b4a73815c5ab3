"""Fits transforms with tf.Transform. No other package uses tf.Transform.

The preprocessing function is declared, or is the user's own. The result of a fit is a saved graph
in the run's folder. TensorFlow and tf.Transform are imported when a fit begins.
"""
