"""Networks that methods train or generate, one family a file."""
