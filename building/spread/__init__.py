"""A build by workers that share nothing but OUT, a folder or in a store: each step as a function of small values."""
