"""What to change in a recipe, or in the command, where a stage does not fit a device."""

from __future__ import annotations

from embrew import build
from embrew.config.overrides import apply_overrides
from embrew.planning.stage import StagePlan
from embrew.recipe import Recipe


def advice(recipe: Recipe, index: int, plan: StagePlan) -> list[str]:
    """Return settings to type, those that change no result first; none where the stage fits.

    Settings that embrew refuses for this recipe are left out.
    """
    if plan.fits:
        return []
    run, encoder = plan.run, recipe.encoder
    found = [
        " ".join(settings) + (f" ({remark})" if remark else "")
        for settings, remark in _settings(recipe, index, plan)
        if _is_accepted(recipe, settings)
    ]
    fixed = plan.memory.taken + plan.memory.weights + plan.memory.gradients + plan.memory.optimizer
    if encoder.quantization is None and (fixed > plan.free or not found):
        share = plan.memory.weights + plan.memory.gradients + plan.memory.optimizer
        room = plan.free - plan.memory.taken - plan.memory.activations
        batch = recipe.stages[index].batch
        least = max(2, -(-share * run.processes // room)) if room > 0 else None
        count = least if batch is None or least is None else _divisor(batch.size, least)
        more = "more memory per device" if count is None else f"--gpus {count}, sharded (FSDP2: launch/fsdp2)"
        found.append(more)
    return found


def _settings(recipe: Recipe, index: int, plan: StagePlan) -> list[tuple[list[str], str]]:
    """Return settings that take less memory, each with a remark."""
    stage, run = recipe.stages[index], plan.run
    place = f"stages.{stage.name}"
    found: list[tuple[list[str], str]] = []
    if not run.recompute:
        found.append(([f"{place}.training.activation_checkpointing=true"], ""))
    if plan.most and run.chunks is not None:
        key = "mini_batch_size" if run.chunks.rows else "mini_batch_num_tokens"
        found.append(([f"{place}.batch.{key}={plan.most}"], ""))
    elif plan.most and stage.batch is not None:
        found.append(([f"{place}.batch.mini_batch_size={plan.most}"], "gradient caching: the same loss, one more pass"))
    elif plan.most:
        rows = next(size for size in range(plan.most, 0, -1) if run.rows % size == 0)
        steps = run.accumulation * run.rows // rows
        key = f"{place}.training."
        found.append(([f"{key}per_device_train_batch_size={rows}", f"{key}gradient_accumulation_steps={steps}"], ""))
    lora = recipe.encoder.lora is not None
    if lora and recipe.encoder.dtype == "float32":
        found.append((["encoder.dtype=bfloat16"], "the frozen base; what is trained stays float32"))
    if lora and recipe.encoder.quantization is None:
        found.append((["encoder.quantization=nf4"], "4-bit base; other results"))
    if not lora and run.moments >= 8:
        found.append(([f"{place}.training.optim=adamw_bnb_8bit"], "moments of 8 bits; other results"))
    if not lora:
        found.append((["encoder.lora={r: 16}"], "train a LoRA in place of every weight; other results"))
    return found


def _is_accepted(recipe: Recipe, settings: list[str]) -> bool:
    try:
        build.check_recipe(Recipe.from_values(apply_overrides(recipe.resolved(), settings)))
    except ValueError:
        return False
    return True


def _divisor(size: int, least: int) -> int | None:
    """Return the smallest divisor of a batch's size from `least` on; None: there is none."""
    return next((count for count in range(least, size + 1) if size % count == 0), None)
