"""Records by number to columns, many batches ahead: a schedule in, the columns of its steps out, in bounded memory."""
