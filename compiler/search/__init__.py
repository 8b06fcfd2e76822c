"""The search for the plan that keeps a promise: groups, candidates, costs, the integer program, and the loop that builds and measures."""
