"""Declared transforms, and saved tf.Transform graphs as functions of RecordBatches.

This room does not use Beam. It imports TensorFlow inside of functions only.
"""
