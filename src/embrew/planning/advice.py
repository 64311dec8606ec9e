"""What to change in a recipe, or in the command, where a stage does not fit a device."""

from __future__ import annotations

from embrew.planning.stage import StagePlan
from embrew.recipe import Recipe


def advice(recipe: Recipe, index: int, plan: StagePlan) -> list[str]:
    """Return settings to type, those that change no result first; none where the stage fits."""
    if plan.fits:
        return []
    stage, run = recipe.stages[index], plan.run
    place, found = f"stages.{stage.name}", []
    fixed = plan.memory.taken + plan.memory.weights + plan.memory.gradients + plan.memory.optimizer
    if not run.recompute:
        found.append(f"{place}.training.activation_checkpointing=true")
    if plan.most and run.chunks is not None:
        key = "mini_batch_size" if run.chunks.rows else "mini_batch_num_tokens"
        found.append(f"{place}.batch.{key}={plan.most}")
    elif plan.most and stage.batch is not None:
        found.append(f"{place}.batch.mini_batch_size={plan.most} (gradient caching: the same loss, one more pass)")
    elif plan.most:
        rows = next(size for size in range(plan.most, 0, -1) if run.rows % size == 0)
        steps = run.accumulation * run.rows // rows
        found.append(
            f"{place}.training.per_device_train_batch_size={rows} {place}.training.gradient_accumulation_steps={steps}"
        )
    lora = recipe.encoder.lora is not None
    if lora and recipe.encoder.dtype == "float32":
        found.append("encoder.dtype=bfloat16 (the frozen base; what is trained stays float32)")
    if lora and recipe.encoder.quantization is None:
        found.append("encoder.quantization=nf4 (4-bit base; other results)")
    if not lora and run.moments >= 8:
        found.append(f"{place}.training.optim=adamw_bnb_8bit (moments of 8 bits; other results)")
    if not lora:
        found.append("encoder.lora={r: 16} (train a LoRA in place of every weight; other results)")
    if recipe.encoder.quantization is None and (fixed > plan.free or not found):
        share = plan.memory.weights + plan.memory.gradients + plan.memory.optimizer
        room = plan.free - plan.memory.taken - plan.memory.activations
        count = -(-share * run.processes // room) if room > 0 else None
        more = "more memory per device" if count is None else f"--gpus {max(2, count)}, sharded (FSDP2: launch/fsdp2)"
        found.append(more)
    return found
