"""Statistics of the values of a data set, by split and feature.

A sketch is a summary of values in bounded memory. Sketches count the values of batches, two
sketches can be added, and the statistics are computed from the sum. The code in this package does
not read record files.
"""
