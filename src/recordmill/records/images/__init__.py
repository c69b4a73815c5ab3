"""Image files: headers, completeness, orientation and resizing.

JPEG and PNG are parsed here, the other formats by Pillow.
"""
