"""Protocol Buffers messages: the plain form of Examples, and TensorProtos."""
