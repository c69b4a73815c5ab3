"""Storage of files behind one protocol: paths or URIs of objects, and ranges, in, their bytes out, with many requests
under way, each repeated where it fails. It knows nothing of formats.
"""
