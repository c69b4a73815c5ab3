"""The source of text files: a record per line or per file, with the class that its folder says."""
