"""Kernels' compiled code on disk: Numba's own cache, and machine code that is called without importing Numba."""
