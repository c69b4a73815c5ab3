"""The Protocol Buffers encoding as kernels: varints, packed lists, names, TensorProto;
any valid spelling to the plain one.
"""
