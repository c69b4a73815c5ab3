"""The first rows of a CSV file, cut in several ways, in; which way is right, and whether the first row is a header,
out: each a guess with its reasons, or the reason why there is none.
"""
