"""What a step must move and compute, counted from the plan alone.

    from mixplan.runtime.cost import Work, plan_cost

    cost = plan_cost(plan, Work.decode(context=256, batch=1))
    cost.memory_bytes, cost.int8_ops

`node_cost` gives one node's share; `roofline.py` turns counts into the least time that a machine's ceilings allow, and
`machine.py` takes these from its hardware record.
"""

from __future__ import annotations

from mixplan.runtime.cost.count import Cost, node_cost, plan_cost
from mixplan.runtime.cost.machine import record_limits
from mixplan.runtime.cost.roofline import Limits, limit_seconds
from mixplan.runtime.cost.work import Work

__all__ = ["Cost", "Limits", "Work", "limit_seconds", "node_cost", "plan_cost", "record_limits"]
