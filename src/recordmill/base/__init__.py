"""What knows nothing of records: errors, kernels, threads, memory for arrays, progress,
hashes and searches over bytes.
"""
