"""Emitters, one op family a file; `table.py` lists them."""
