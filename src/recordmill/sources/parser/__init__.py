"""Source for files of any format, which a function of the user parses."""
