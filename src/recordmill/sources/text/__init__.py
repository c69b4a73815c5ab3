"""Text files in, a record per line or per file out, with the class that its folder says."""
