"""`python -m benchmarks.ceilings [--json] ...`: the machine's ceilings, from the probes that the product carries in targets/cpu/ceilings.

The comparison (benchmarks/compare) measures them inside its own run; this is the same program by itself.
"""

from mixplan.targets.cpu.ceilings.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
