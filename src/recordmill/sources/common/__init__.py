"""Code that all kinds of input share."""
