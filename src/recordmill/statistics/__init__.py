"""Statistics of the values of a data set, by split and feature.

Sketches count values batch by batch, and two sketches can be added exactly. The statistics are
computed from them. Nothing here reads record files.
"""
