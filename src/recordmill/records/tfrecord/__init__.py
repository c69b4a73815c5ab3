"""Frames of TFRecord files: writing, scanning and compression. Payloads are not parsed here."""
