"""`recordmill report`: one HTML file that shows what a data set holds."""
