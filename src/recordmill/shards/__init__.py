"""The parts of a data set: names, manifest, index and sums; which files there are to read, where their records are, and
whether they are right.
"""
