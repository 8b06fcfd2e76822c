"""Times tile shapes on the GPU that is here, and keeps what won: see `run.py`."""
