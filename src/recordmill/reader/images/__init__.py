"""Decoding of images into pixels, with the same result in all outputs."""
