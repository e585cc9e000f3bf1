"""Where data sets come from, one kind of source a file."""
