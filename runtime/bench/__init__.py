"""`mixplan bench`: how a plan behaves on this machine, cold, steady and under stress. Needs the base install only."""
