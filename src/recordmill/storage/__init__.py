"""Files and folders: paths and ranges of bytes in, listings, blocks, digests and whole new files out.
It knows nothing of records.
"""
