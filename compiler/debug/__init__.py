"""Which node of a plan is to blame for what the plan gets wrong."""
