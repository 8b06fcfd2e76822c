"""What a model's own inputs say about its weights: second moments and Hessians, gathered over a text (collect.py, statistics.py)."""
