"""Numbers of the records that each training step gets, from a data set's layout, a seed and a position."""
