"""Options, the plan, composition and progress of `build` and `read`; Beam is imported when a pipeline runs."""
