"""Files of a data set: names, manifest, indexes, pieces, runs and verification."""
