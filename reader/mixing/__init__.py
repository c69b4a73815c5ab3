"""Several data sets and weights in, one sequence for training out."""
