"""Inspection of files: summaries of their contents, and text for other programs."""
