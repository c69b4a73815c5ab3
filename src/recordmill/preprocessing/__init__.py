"""Declared transforms, and saved tf.Transform graphs as functions of RecordBatches.

This package does not use Beam. It imports TensorFlow only inside of functions.
"""
