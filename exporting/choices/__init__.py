"""What the user of a read did not say in full, said by the records themselves:
shapes of conversions, names of files, suggestions.
"""
