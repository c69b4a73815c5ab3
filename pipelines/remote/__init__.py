"""Jobs on an engine: flags that pass, what is looked at beforehand, submission, watching, cancelling, and what is
left of them.
"""
