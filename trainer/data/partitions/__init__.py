"""Ways of cutting a data set into clients, one a file."""
