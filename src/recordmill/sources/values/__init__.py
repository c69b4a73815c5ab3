"""Values of one type in, values of a feature's type out:
numbers and times in text, Arrow casts, one schema from several, labels.
"""
