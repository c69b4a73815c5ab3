"""What a record is: a `Schema` of features in, its forms for Arrow, TensorFlow Metadata, TensorFlow Datasets and
`tf.io` out, and back.
"""
