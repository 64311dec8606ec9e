"""Plans as plain values, for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embrew.planning.encoding import EncodingPlan
from embrew.planning.plan import RecipePlan
from embrew.planning.stage import StagePlan


def plan_document(plan: RecipePlan, changes: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the plan of a recipe; bytes are those of one device."""
    return {
        "device": plan.device.name,
        "devices": plan.processes,
        "utilization": plan.utilization,
        "notes": plan.notes,
        "stages": [
            {**_stage(stage), "changes": list(found)} for stage, found in zip(plan.stages, changes, strict=True)
        ],
    }


def encoding_document(plan: EncodingPlan) -> dict[str, Any]:
    """Return the plan of encoding a corpus."""
    return {
        "model": plan.model,
        "device": plan.device.name,
        "devices": plan.devices,
        "utilization": plan.utilization,
        "texts": plan.texts,
        "tokens": plan.tokens,
        "parameters": plan.parameters,
        "flop_per_text": plan.flop,
        "hours": plan.seconds / 3600,
        "bytes": {str(size): sizes for size, sizes in plan.bytes.items()},
        "shards": plan.shards,
        "lost_worker_seconds": plan.lost_seconds,
    }


def _stage(stage: StagePlan) -> dict[str, Any]:
    memory = stage.memory
    return {
        "name": stage.run.name,
        "objective": stage.run.method,
        "parameters": stage.static.parameters,
        "trained": stage.static.trained,
        "bytes": {
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer": memory.optimizer,
            "activations": memory.activations,
            "process": memory.taken,
            "peak": memory.peak,
            "device": stage.free,
            "disk": stage.disk,
            "saved_per_token_and_layer": stage.saved,
        },
        "fits": stage.fits,
        "sharded": memory.sharded,
        "activation_checkpointing": bool(stage.run.recompute),
        "micro_batch": stage.run.rows,
        "largest_micro_batch": stage.most,
        "tokens_per_step": stage.tokens,
        "lengths": "measured" if stage.measured else "assumed",
        "flop_per_step": stage.flop,
        "seconds_per_step": stage.seconds,
        "steps": stage.run.steps,
        "hours": stage.hours,
    }
