"""A data set in the forms that consumers take: arrays, NumPy batches, `tf.data`."""
