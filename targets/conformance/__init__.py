"""Whether a target computes what the op table says: every op alone, through the interface that any plan uses.

`cases/` are the inputs of each op, `plans.py` makes a plan of a case, `run.py` compiles it for a target, runs it on the device of that name
and holds the result against the op's numpy reference, `report.py` sums up.
"""
