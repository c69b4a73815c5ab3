"""Options, planning and execution of `build` and `read`.

Beam is imported only when a pipeline runs.
"""
