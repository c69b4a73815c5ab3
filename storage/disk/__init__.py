"""What only files of a local disk allow: writing them past the system's cache, reading many of them by one call."""
