"""The command line: a parser of the declared options, and a function for each command; arguments in, exit codes out."""
