"""A training step of an encoder and an objective; a contrastive batch of any size in the memory of a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from embrew.encoder import Encoder
from embrew.methods import EmbeddingObjective, Objective
from embrew.methods.base import UNIT_WEIGHTS
from embrew.methods.embedding import Embed
from embrew.model.batching import passes_by_length
from embrew.model.weights import check_float32
from embrew.recipe.stage import BatchConfig
from embrew.text.tokens import Tokens, select_rows, upload
from embrew.training.sharding import is_sharded, shard_whole


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """The size of a chunk, given as one of the two.

    Attributes:
        rows: texts per chunk.
        tokens: padded tokens per chunk (rows × longest row); a longer text is a separate chunk.
    """

    rows: int | None = None
    tokens: int | None = None

    @classmethod
    def from_config(cls, batch: BatchConfig | None) -> Chunks | None:
        """Return the chunks of a stage's batch; None: gradients are not cached."""
        if batch is None or not (batch.mini_batch_size or batch.mini_batch_num_tokens):
            return None
        return cls(rows=batch.mini_batch_size, tokens=batch.mini_batch_num_tokens)


def cached_loss(
    objective: EmbeddingObjective, encoder: Encoder, batch: dict[str, Any], chunks: Chunks
) -> dict[str, Tensor]:
    """Return the objective's loss on the whole batch; its backward pass holds the activations of one chunk at a time.

    *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup* (Gao et al., 2021): all texts are
    embedded without a graph, the loss gives the gradient of every embedding, and each chunk is then embedded again,
    with the random numbers of the first forward pass, to propagate its gradient. Loss and gradients equal those of a
    single forward pass over the batch; the cost is a second forward pass.

    Chunks hold texts of similar length, which keeps padding short. The second forward pass runs within `backward()`.
    Where embeddings are inserted into further texts as vectors, these texts are embedded after the others and
    propagated before them: the gradient of their vectors is added to that of the embeddings they are computed from.

    Args:
        objective: its loss must depend on the embeddings alone.
        encoder: encoder that is trained.
        batch: batch that the objective collated, on the encoder's device.
        chunks: size of the chunks.

    Returns:
        What calling the objective returns.
    """
    inputs = objective.inputs
    batch = inputs.complete(encoder, batch)
    passes = _Passes(inputs.embed, encoder, chunks)
    with torch.no_grad():
        embeddings, prompted = inputs.embed_all(encoder, batch, passes.without_graph)
    if not torch.is_grad_enabled():
        return objective.total(embeddings, batch)
    plain = [role for role in embeddings if role not in prompted]
    leaves = {role: vectors.detach().requires_grad_() for role, vectors in embeddings.items()}
    parts = objective.total(leaves, batch)
    learned = [parameter for parameter in batch.get("learned", {}).values() if parameter.requires_grad]
    grads = torch.autograd.grad(parts["loss"], [*leaves.values(), *learned], materialize_grads=bool(prompted))

    def replay(scale: Tensor) -> None:
        gradients = {role: grad * scale for role, grad in zip(leaves, grads, strict=False)}
        if prompted:  # last first: gradients of their vectors are added to those of the texts they come from
            sources = {role: leaves[role].detach().requires_grad_() for role in plain}
            with torch.enable_grad(), passes.autocast():
                table = inputs.prompt_vectors(encoder, sources, batch)
            table_leaf = table.detach().requires_grad_()
            for role in prompted:
                passes.propagate(role, gradients[role], table_leaf)
            torch.autograd.backward(table, torch.zeros_like(table) if table_leaf.grad is None else table_leaf.grad)
            for role, vectors in sources.items():
                gradients[role] = gradients[role] if vectors.grad is None else gradients[role] + vectors.grad
        for role in plain:
            passes.propagate(role, gradients[role])
        for parameter, grad in zip(learned, grads[len(leaves) :], strict=True):
            torch.autograd.backward(parameter, grad * scale)

    anchor = torch.zeros((), device=encoder.device, requires_grad=True)
    loss: Tensor = _Replay.apply(anchor, parts["loss"].detach(), replay)
    return {**parts, "loss": loss}


class _Chunk(NamedTuple):
    rows: Tensor | None  # indices in the batch; None: a dummy forward pass
    tokens: Tokens
    random_state: tuple[Tensor, ...]


class _Passes:
    """The forward passes over texts in chunks: without a graph, and again with one, under the autocast of the first."""

    def __init__(self, embed: Embed, encoder: Encoder, chunks: Chunks) -> None:
        self.embed, self.encoder, self.size = embed, encoder, chunks
        self.chunks_by_role: dict[str, list[_Chunk]] = {}
        kind = encoder.device.type
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        self.autocast = lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)

    def without_graph(self, role: str, tokens: Tokens) -> Tensor:
        """Return the embeddings of the texts of a role, and keep its chunks with the random state of each."""
        parts, rows, device = [], [], self.encoder.device
        chunks = self.chunks_by_role[role] = []
        groups = passes_by_length(tokens, self.encoder.cost, batch_size=self.size.rows, batch_tokens=self.size.tokens)
        for group, counts in groups:
            row_numbers = upload(torch.tensor(group), device) if counts else None
            chunk = _Chunk(row_numbers, tokens.select(group), _random_state(device))
            vectors = self.embed(self.encoder, chunk.tokens)
            chunks.append(chunk)
            if counts:
                parts.append(vectors)
                rows += group
        return select_rows(torch.cat(parts, dim=-2), torch.tensor(rows).argsort(), dim=-2)

    def propagate(self, role: str, gradients: Tensor, soft: Tensor | None = None) -> None:
        """Embed each chunk again and propagate the gradients of the role's embeddings."""
        for chunk in self.chunks_by_role.get(role, []):
            tokens = chunk.tokens if soft is None else chunk.tokens.with_soft(soft)
            with torch.enable_grad(), _replayed(chunk.random_state, self.encoder.device), self.autocast():
                vectors = self.embed(self.encoder, tokens)
            grad = torch.zeros_like(vectors) if chunk.rows is None else gradients.index_select(-2, chunk.rows)
            torch.autograd.backward(vectors, grad.to(vectors.dtype))


class _Replay(torch.autograd.Function):
    """A loss whose backward pass calls a function with the incoming gradient (1, or the gradient scaler's factor)."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, replay: Callable[[Tensor], None]) -> Tensor:
        ctx.replay = replay
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        ctx.replay(grads[0])
        return None, None, None


def _random_state(device: torch.device) -> tuple[Tensor, ...]:
    """Return the random state of the CPU and, where dropout is drawn on another device, of that device."""
    if device.type == "cpu":
        return (torch.get_rng_state(),)
    return torch.get_rng_state(), torch.get_device_module(device).get_rng_state(device)


@contextmanager
def _replayed(state: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
    """Restore a random state; afterwards, training continues with its own, as if nothing had been drawn."""
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
        torch.set_rng_state(state[0])
        if devices:
            torch.get_device_module(device).set_rng_state(state[1], device)
        yield


class Learned(nn.Module):
    """Parameters that an objective needs in training only."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)

    def forward(self) -> dict[str, Tensor]:
        """Return copies by name, through which gradients reach the parameters."""
        return {name: parameter.clone() for name, parameter in self.named_parameters()}


class TrainStep(nn.Module):
    """Encoder and objective: takes a batch, returns a dict with `loss` and its parts.

    All forward passes happen inside `forward`; with `chunks`, the second ones of gradient caching happen in the loss'
    backward pass. Where the encoder's weights are sharded, every process runs the same number of forward passes.

    Attributes:
        learned: parameters that the objective needs in training only.
        accepts_loss_kwargs: False tells the Trainer to divide every loss by the number of micro-batches and to pass no
            count of labels; `unit_weights` holds the weight of a token.
    """

    accepts_loss_kwargs = False

    def __init__(self, encoder: Encoder, objective: Objective, chunks: Chunks | None = None) -> None:
        super().__init__()
        if chunks is not None and not isinstance(objective, EmbeddingObjective):
            raise TypeError(
                f"{type(objective).__name__} depends on more than embeddings; it cannot use gradient caching"
            )
        self.encoder = encoder
        self.objective = objective
        self.chunks = chunks
        self.learned = Learned(objective.learned(encoder))
        check_float32(self)
        self.sharded = is_sharded(encoder)
        self.has_learned = any(True for _ in self.learned.parameters())
        if self.sharded and self.has_learned:
            shard_whole(self.learned, encoder.device)

    def forward(self, *, unit_weights: Mapping[str, float] | None = None, **batch: Any) -> dict[str, Tensor]:
        """Move the batch to the encoder's device and compute the loss.

        Args:
            unit_weights: weight of the loss of a token, or row; None: the batch is the whole optimiser step.
            batch: batch that the objective collated.
        """
        device = self.encoder.device
        moved: dict[str, Any] = {name: to_device(part, device) for name, part in batch.items()}
        if unit_weights is not None:
            moved[UNIT_WEIGHTS] = unit_weights
        if self.has_learned:
            moved["learned"] = self.learned()
        if isinstance(self.objective, EmbeddingObjective) and self.chunks is not None:
            return cached_loss(self.objective, self.encoder, moved, self.chunks)
        return self.objective(self.encoder, moved)

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute activations in the backward pass; the options are those of the language model's own method."""
        self.encoder.backbone.causal_lm.activation_checkpointing_enable(**options)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def to_device(part: Any, device: torch.device) -> Any:
    """Return a part of a batch on a device, without waiting for the copy; numbers and arrays stay on the CPU."""
    if isinstance(part, Tensor):
        return upload(part, device)
    return part.to(device) if hasattr(part, "to") else part
