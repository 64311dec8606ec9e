"""What training or encoding takes, before it begins: memory, time, disk."""

from embrew.planning.plan import RecipePlan, plan_recipe

__all__ = ["RecipePlan", "plan_recipe"]
