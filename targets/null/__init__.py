"""The null target."""
