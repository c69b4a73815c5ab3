"""Statistics of the values of a data set, by split and feature.

Sketches count the values of batches, and the statistics are computed from the sketches. Two
sketches can be added. The code in this package does not read record files.
"""
