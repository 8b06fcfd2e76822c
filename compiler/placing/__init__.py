"""Which compute unit runs which nodes, where a plan is for several at once."""
