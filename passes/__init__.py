"""Graph passes over `torch.fx`: one pass or rule a file, no hidden state."""
