"""Kernels' compiled code on disk: Numba's own files, and beside them machine code that is called without Numba."""
