"""Jobs on an engine: checks, submission, monitoring and cancellation."""
