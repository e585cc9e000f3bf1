"""The coordinator: the server side of rounds over a broker."""
