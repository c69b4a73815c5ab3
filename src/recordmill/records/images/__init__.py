"""What an image file's bytes say: its header, whether it is complete, how it is to be turned; one module per format."""
