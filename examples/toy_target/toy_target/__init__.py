"""A target for mixplan outside of its tree: what a new chip needs, with numpy in its place."""
