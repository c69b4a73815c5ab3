"""Frames of TFRecord files: written with CRCs, and read back from bytes of any compression; nothing is parsed."""
