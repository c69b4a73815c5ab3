"""Image files: headers, whether the container is whole, orientation; JPEG and PNG are parsed here, the others by Pillow."""
