"""TFRecord files: payloads to frames with CRCs, and bytes of any compression back to checked frames;
nothing is parsed.
"""
