"""Which records each training step gets: a data set's layout, a seed and a position in, record numbers out."""
