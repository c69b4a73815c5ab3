"""The bytes of an image file in, its `ImageHeader` or the reason why it can't be used out;
pixels are decoded nowhere here.
"""
