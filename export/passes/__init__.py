"""Graph passes, one a file: each states what it requires of a model and what it ensures."""
