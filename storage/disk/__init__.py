"""What only a local disk has: whole new files and their names, ways past the system's cache, many files by one call."""
