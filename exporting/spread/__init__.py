"""A read by workers that share nothing but the folder of the run: each step as a function of small values."""
