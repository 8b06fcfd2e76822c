"""`python -m mixplan.runtime.ops` prints the reference page of the ops."""

from __future__ import annotations

import sys

from mixplan.runtime.ops.pages import render

sys.stdout.write(render())
