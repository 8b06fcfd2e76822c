"""The cases of each family of ops."""
