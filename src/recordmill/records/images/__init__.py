"""Image files: headers, completeness, decoding, geometry, resizing and rewriting.

JPEG and PNG are parsed here, the other formats by Pillow.
"""
