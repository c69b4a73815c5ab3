"""What a data set is: names, manifest, index and sums; which files there are to read, where their records are, and
whether they are right.
"""
