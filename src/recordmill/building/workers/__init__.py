"""A build by workers that share nothing but OUT, a folder or a place in a store."""
