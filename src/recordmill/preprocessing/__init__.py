"""A declared transform to its checked form, and a saved tf.Transform graph to a function from RecordBatch to
RecordBatch. No Beam; TensorFlow inside functions only.
"""
