"""Files that are a record each, straight into their shards: their keys are known before they are read, so they are
read in the order of the keys, and nothing is sorted or waits in between.
"""
