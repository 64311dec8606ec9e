"""Kernels of a GPU against the reference on the same GPU: attention by model shape, losses by vocabulary."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import gpu
import torch
from ctkd import random_model
from torch import Tensor

from drill import sizes
from drill.child import Skipped
from drill.record import Result
from embrew.losses import chunked_head, fused_chunk, token_kl, token_nll
from embrew.modeling.model.attention import Attention
from embrew.modeling.model.backbone import Backbone
from embrew.modeling.text.tokens import Row, Segment, Tokens

LENGTHS = (300, 17, 128, 64, 1, 220)
LAYERS = 4  # of the model, so that float64 fits and rounding stays small
STATES, GRADIENTS = 4e-2, 8e-2  # largest relative difference in bfloat16, of norms
FLOAT32 = 1e-4  # of FlexAttention in float32
AGREES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def attention() -> Result:
    """States and gradients of packed rows by each kernel, and of padded rows by sdpa, against eager in float64."""
    kernels = [("sdpa", torch.bfloat16), ("varlen_flex", torch.bfloat16), ("varlen_flex", torch.float32)]
    if find_spec("flash_attn") is not None or gpu.DEVICE != "cuda":
        kernels.append(("varlen_fa", torch.bfloat16))
    if gpu.DEVICE != "cuda":  # where FlexAttention has no backward pass
        kernels = [(name, dtype) for name, dtype in kernels if name != "varlen_flex"]
    tokens = batch()
    rows: list[dict[str, Any]] = []
    for mode in ("causal", "bidirectional"):
        pattern = Attention(mode)  # type: ignore[arg-type]
        wanted = states_and_gradients("eager", torch.float64, pattern, tokens)
        for name, dtype in kernels:
            found = states_and_gradients(name, dtype, pattern, tokens)
            gaps = [gap(one, other) for one, other in zip(found, wanted, strict=True)]
            bounds = (STATES, GRADIENTS) if dtype == torch.bfloat16 else (FLOAT32, FLOAT32)
            equal = all(one <= bound for one, bound in zip(gaps, bounds, strict=True))
            row = {"kernel": name, "dtype": str(dtype).removeprefix("torch."), "attention": mode}
            rows.append({**row, "states": gaps[0], "gradients": gaps[1], "equal": equal})
    flash = "tried" if any(row["kernel"] == "varlen_fa" for row in rows) else "flash-attn is not installed"
    figures = {"largest_gap": max(row["states"] for row in rows), "flash-attention": flash, "kernels": rows}
    checks = {f"{row['kernel']}, {row['dtype']}, {row['attention']}": row["equal"] for row in rows}
    return {"figures": figures, "checks": checks}


def batch() -> Tokens:
    """Return rows of random tokens of unequal lengths."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = sizes.now().shapes["0.6b"]["vocab_size"]
    drawn = [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in LENGTHS]
    return Tokens.pad([Row.of(ids, Segment.TEXT) for ids in drawn])


def states_and_gradients(kernel: str, dtype: torch.dtype, pattern: Attention, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Return the states of real positions, and the gradient of the attention's weights, in float64 on the CPU."""
    config = sizes.now().config("0.6b")
    config.num_hidden_layers = min(LAYERS, config.num_hidden_layers)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    backbone = Backbone(random_model(config, gpu.DEVICE, torch.float32).to(dtype)).requires_grad_(True)
    backbone.inner.config._attn_implementation = kernel
    found = backbone.hidden_states(tokens.to(gpu.DEVICE), pattern)
    real = found[tokens.attention_mask.bool().to(gpu.DEVICE)]
    weights = [p for name, p in backbone.inner.named_parameters() if "_proj" in name and "self_attn" in name]
    direction = torch.linspace(-1, 1, real.shape[-1], device=gpu.DEVICE, dtype=torch.float64)
    gradients = torch.autograd.grad((real.double() * direction).sum(), weights)
    return real.detach().double().cpu(), torch.cat([one.double().flatten().cpu() for one in gradients])


def gap(found: Tensor, wanted: Tensor) -> float:
    """Return the relative difference of norms; infinite where something is not finite."""
    value = float((found - wanted).norm() / wanted.norm())
    return value if value == value else float("inf")


def fused() -> Result:
    """Losses and gradients of `token_kl` and `token_nll` by fused kernels, against the eager chunk, in two dtypes."""
    kernels = fused_chunk.kernels(torch.device(gpu.DEVICE))
    if kernels is None:
        raise Skipped("the fused kernels, which need Triton and a C compiler and must agree with the eager chunk; "
                      "the log of this item says why")  # fmt: skip
    figures: dict[str, Any] = {"largest_gap": fused_chunk.largest_gap(kernels, torch.device(gpu.DEVICE))}
    checks = {"small, float32": figures["largest_gap"] <= fused_chunk.AGREES}
    rows = []
    for dtype, bound in AGREES.items():
        for name in ("kl", "nll"):
            ours, theirs = (loss_and_gradient(name, dtype, used) for used in (kernels, None))
            gaps = [gap(one, other) for one, other in zip(ours, theirs, strict=True)]
            kind = str(dtype).removeprefix("torch.")
            rows.append({"loss": name, "dtype": kind, "relative": gaps[0], "gradient": gaps[1]})
            checks[f"{name}, {kind}"] = max(gaps) <= bound
    return {"figures": {**figures, "losses": rows}, "checks": checks}


def loss_and_gradient(name: str, dtype: torch.dtype, kernels: Any) -> tuple[Tensor, Tensor]:
    """Return a loss over the vocabulary and its gradient for the states, by fused kernels or without."""
    now = sizes.now()
    generator = torch.Generator().manual_seed(0)
    shapes = ((now.chunk, now.hidden), (now.chunk, now.hidden), (now.vocabulary, now.hidden))
    drawn = [torch.randn(shape, generator=generator).mul(now.hidden**-0.25).to(gpu.DEVICE, dtype) for shape in shapes]
    teacher, student, weight = drawn[0], drawn[1].requires_grad_(), drawn[2]
    labels = torch.arange(now.chunk, device=gpu.DEVICE) * (now.vocabulary // now.chunk)
    before, chunked_head.kernels = chunked_head.kernels, lambda _: kernels
    try:
        loss = token_kl(teacher, student, weight) if name == "kl" else token_nll(student, labels, weight)
        (gradient,) = torch.autograd.grad(loss, student)
    finally:
        chunked_head.kernels = before
    return loss.detach().double().cpu().reshape(1), gradient.double().cpu()
