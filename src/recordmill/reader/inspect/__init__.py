"""A data set in, what `inspect` says of it out: summary, contents, findings, and schemas and readers as text."""
