"""How numpy is imported leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENVIRONMENT = """
import os, sys
{before}
import mixplan.runtime
assert "numpy" not in sys.modules
mixplan.runtime.SamplingParams
assert "numpy" in sys.modules
print(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
"""


@pytest.mark.parametrize(("before", "after"), [("", "None"), ("os.environ['OPENBLAS_THREAD_TIMEOUT'] = '9'", "9")])
def test_the_environment_stays_as_it_was(before: str, after: str) -> None:
    code = ENVIRONMENT.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (f"{after}\n", 0), done.stderr
