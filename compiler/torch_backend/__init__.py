"""A plan's assignment on a module in place: the backend "mixplan" of torch.compile."""
