"""From a Source to a committed data set: plan, keys, runs, cuts, merge, shards, accounts, commit. No Beam."""
