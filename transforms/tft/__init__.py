"""The one room that knows tf.Transform: a preprocessing function, declared or the user's own, and the records of a
split to a saved graph in the run's folder. TensorFlow and tf.Transform are imported when a fit begins.
"""
