"""Fits transforms with tf.Transform. No other room uses tf.Transform.

The preprocessing function is declared, or the user's own. The records of a split become a saved
graph in the run's folder. TensorFlow and tf.Transform are imported when a fit begins.
"""
