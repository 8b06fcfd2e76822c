"""Which target each node goes to."""
