"""Report on a data set as an HTML page."""
