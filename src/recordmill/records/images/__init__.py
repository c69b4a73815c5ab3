"""Image files: headers, completeness and orientation. JPEG and PNG are parsed here, the others by Pillow."""
