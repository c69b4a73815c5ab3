"""From shards to files of other formats: the plan of a read, its jobs, what a stopped one keeps,
its commit. No Beam.
"""
