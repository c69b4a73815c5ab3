"""Storage protocols, and their implementations for local disks and object stores.

Requests to stores run concurrently and are repeated if they fail. No file format is known here.
"""
