"""Statistics of the values of a data set, by feature and split: sketches that are counted while records pass by and add
up exactly, and the statistics that are made of them. Nothing here reads a file of records.
"""
