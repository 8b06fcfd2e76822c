"""The compile half: front ends, capture, lowering and plan emission. Needs `mixplan[compile]`."""
