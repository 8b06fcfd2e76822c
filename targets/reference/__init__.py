"""The reference target."""
