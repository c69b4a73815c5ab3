"""Steps from input units to a committed data set, without Beam."""
