"""A training step of an encoder and an objective; gradient caching (GradCache) for large contrastive batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from embrew.encoder import Encoder
from embrew.methods import EmbeddingObjective, Objective
from embrew.methods.base import ITEM_WEIGHTS, Batch
from embrew.methods.embedding import Embed
from embrew.model.batching import passes_by_length
from embrew.model.weights import check_float32
from embrew.recipe.stage import BatchConfig
from embrew.text.tokens import Tokens, select_rows, upload
from embrew.training.sharding import is_sharded, shard_whole


@dataclass(frozen=True, kw_only=True)
class MiniBatchSize:
    """The size of a chunk of gradient caching, in texts or in tokens.

    Attributes:
        rows: texts per chunk.
        tokens: padded tokens per chunk (rows × longest row); a longer text is a separate chunk.
    """

    rows: int | None = None
    tokens: int | None = None

    @classmethod
    def from_config(cls, batch: BatchConfig | None) -> MiniBatchSize | None:
        """Return the size of a chunk for a stage; None: gradients are not cached."""
        if batch is None or not (batch.mini_batch_size or batch.mini_batch_num_tokens):
            return None
        return cls(rows=batch.mini_batch_size, tokens=batch.mini_batch_num_tokens)


def cached_loss(
    objective: EmbeddingObjective, encoder: Encoder, batch: Batch, mini_batch_size: MiniBatchSize
) -> dict[str, Tensor]:
    """Return the loss of the whole batch with gradient caching: activations of one chunk at a time are in memory.

    *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup* (Gao et al., 2021): all texts are
    embedded without a graph, the loss gives the gradient of every embedding, and each chunk is then embedded again,
    with the random numbers of the first forward pass, to propagate its gradient. Loss and gradients equal those of a
    single forward pass over the batch; the cost is a second forward pass of every chunk but the last, whose graph is
    kept.

    Chunks hold texts of similar length, which keeps padding short. The second forward pass runs within `backward()`.
    Where embeddings are inserted into the prompts of further texts as soft tokens, these texts are embedded after the
    others, and their backward pass runs first: it gives a part of the gradient of the embeddings that were inserted.

    Args:
        objective: its loss must depend on the embeddings alone.
        encoder: encoder that is trained.
        batch: batch that the objective collated, on the encoder's device.
        mini_batch_size: size of the chunks.

    Returns:
        The same dictionary as the objective: `loss`, and detached values for the log.
    """
    inputs = objective.inputs
    batch = inputs.complete(encoder, batch)
    passes = _ChunkedPasses(inputs.embed, encoder, mini_batch_size, keeps_graph=torch.is_grad_enabled())
    with torch.no_grad():
        embeddings, prompted = inputs.embed_all(encoder, batch, passes.forward_without_grad)
    if not torch.is_grad_enabled():
        return objective.total(embeddings, batch)
    unprompted = [role for role in embeddings if role not in prompted]
    leaves = {role: vectors.detach().requires_grad_() for role, vectors in embeddings.items()}
    outputs = objective.total(leaves, batch)
    learned = [parameter for parameter in batch.get("learned", {}).values() if parameter.requires_grad]
    leaf_grads = torch.autograd.grad(outputs["loss"], [*leaves.values(), *learned], materialize_grads=bool(prompted))

    def replay(scale: Tensor) -> None:
        gradients = {role: grad * scale for role, grad in zip(leaves, leaf_grads, strict=False)}
        if prompted:  # first, since their soft tokens add to the gradients of the texts that these were computed from
            source_leaves = {role: leaves[role].detach().requires_grad_() for role in unprompted}
            with torch.enable_grad(), passes.autocast():
                prompt_vectors = inputs.prompt_vectors(encoder, source_leaves, batch)
            prompt_leaf = prompt_vectors.detach().requires_grad_()
            for role in prompted:
                passes.propagate(role, gradients[role], prompt_leaf)
            prompt_grad = torch.zeros_like(prompt_vectors) if prompt_leaf.grad is None else prompt_leaf.grad
            torch.autograd.backward(prompt_vectors, prompt_grad)
            for role, vectors in source_leaves.items():
                gradients[role] = gradients[role] if vectors.grad is None else gradients[role] + vectors.grad
        for role in reversed(unprompted):  # the graph of the last chunk is kept
            passes.propagate(role, gradients[role])
        for parameter, grad in zip(learned, leaf_grads[len(leaves) :], strict=True):
            torch.autograd.backward(parameter, grad * scale)

    anchor = torch.zeros((), device=encoder.device, requires_grad=True)  # an input, so that autograd calls `replay`
    loss: Tensor = _Replay.apply(anchor, outputs["loss"].detach(), replay)
    return {**outputs, "loss": loss}


class _Chunk(NamedTuple):
    rows: Tensor | None  # indices in the batch; None: a dummy forward pass
    tokens: Tokens
    random_state: tuple[Tensor, ...]


class _ChunkedPasses:
    """Passes over texts in chunks: forward without a graph, then forward and backward, under the same autocast.

    The last chunk is embedded with a graph, which its backward pass needs next, so that it is not embedded again. One
    chunk's graph at a time is in memory all the same.
    """

    def __init__(self, embed: Embed, encoder: Encoder, size: MiniBatchSize, *, keeps_graph: bool) -> None:
        self.embed, self.encoder, self.size, self.keeps_graph = embed, encoder, size, keeps_graph
        self.last: tuple[_Chunk, Tensor] | None = None  # the last chunk, and its vectors with their graph
        self.chunks_by_role: dict[str, list[_Chunk]] = {}
        device_type = encoder.device.type
        enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        self.autocast = lambda: torch.autocast(device_type, dtype=dtype, enabled=enabled)

    def forward_without_grad(self, role: str, tokens: Tokens) -> Tensor:
        """Return the embeddings of the texts of a role, and keep its chunks with the random state of each."""
        embeddings, order, device = [], [], self.encoder.device
        chunks = self.chunks_by_role[role] = []
        self.last = None
        passes = passes_by_length(tokens, self.encoder.cost, batch_size=self.size.rows, batch_tokens=self.size.tokens)
        for i, (indices, is_real) in enumerate(passes):
            rows = upload(torch.tensor(indices), device) if is_real else None
            chunk = _Chunk(rows, tokens.select(indices), _random_state(device))
            keeps = self.keeps_graph and i == len(passes) - 1 and tokens.soft is None
            with torch.set_grad_enabled(keeps):
                vectors = self.embed(self.encoder, chunk.tokens)
            if keeps:
                self.last = chunk, vectors
            chunks.append(chunk)
            if is_real:
                embeddings.append(vectors.detach())
                order += indices
        return select_rows(torch.cat(embeddings, dim=-2), torch.tensor(order).argsort(), dim=-2)

    def propagate(self, role: str, gradients: Tensor, soft: Tensor | None = None) -> None:
        """Propagate the gradients of the role's embeddings, one chunk after the other."""
        for chunk in reversed(self.chunks_by_role.get(role, [])):  # from the last one, so that its graph goes first
            if self.last is not None and self.last[0] is chunk:
                vectors, self.last = self.last[1], None
            else:
                vectors = self._embed_again(chunk, soft)
            grad = torch.zeros_like(vectors) if chunk.rows is None else gradients.index_select(-2, chunk.rows)
            torch.autograd.backward(vectors, grad.to(vectors.dtype))

    def _embed_again(self, chunk: _Chunk, soft: Tensor | None) -> Tensor:
        tokens = chunk.tokens if soft is None else chunk.tokens.with_soft(soft)
        with torch.enable_grad(), _with_random_state(chunk.random_state, self.encoder.device), self.autocast():
            return self.embed(self.encoder, tokens)


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
def _with_random_state(state: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
    """Run the block with a random state, and restore the current one afterwards."""
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
        torch.set_rng_state(state[0])
        if devices:
            torch.get_device_module(device).set_rng_state(state[1], device)
        yield


class ObjectiveParameters(nn.Module):
    """Parameters that an objective needs in training only."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)

    def forward(self) -> dict[str, Tensor]:
        """Return clones by name; gradients flow through them to the parameters."""
        return {name: parameter.clone() for name, parameter in self.named_parameters()}


class TrainStep(nn.Module):
    """The module that the Trainer optimises, encoder and objective: takes a batch, returns `loss` and logged values.

    All forward passes run inside `forward`; with `mini_batch_size`, the second ones of gradient caching run in the
    backward pass. Where the encoder's weights are sharded, every process runs the same number of forward passes.

    Attributes:
        learned: parameters that the objective needs in training only.
        accepts_loss_kwargs: False tells the Trainer to divide every loss by the number of micro-batches and to pass no
            count of labels; `item_weights` holds the weight of a token.
    """

    accepts_loss_kwargs = False

    def __init__(self, encoder: Encoder, objective: Objective, mini_batch_size: MiniBatchSize | None = None) -> None:
        super().__init__()
        if mini_batch_size is not None and not isinstance(objective, EmbeddingObjective):
            raise TypeError(
                f"{type(objective).__name__} depends on more than embeddings; it cannot use gradient caching"
            )
        self.encoder = encoder
        self.objective = objective
        self.mini_batch_size = mini_batch_size
        self.learned = ObjectiveParameters(objective.learned(encoder))
        check_float32(self)
        self.sharded = is_sharded(encoder)
        self.has_learned = any(True for _ in self.learned.parameters())
        if self.sharded and self.has_learned:
            shard_whole(self.learned, encoder.device)

    def forward(self, *, item_weights: Mapping[str, float] | None = None, **batch: Any) -> dict[str, Tensor]:
        """Move the batch to the encoder's device and compute the loss.

        Args:
            item_weights: factor of the loss of one token, text or row, by which micro-batches add up to the mean over
                the optimiser step (`methods.base.weights_of_items`); None: the batch is the whole step.
            batch: batch that the objective collated.
        """
        device = self.encoder.device
        on_device: Batch = {name: to_device(value, device) for name, value in batch.items()}
        if item_weights is not None:
            on_device[ITEM_WEIGHTS] = item_weights
        if self.has_learned:
            on_device["learned"] = self.learned()
        if isinstance(self.objective, EmbeddingObjective) and self.mini_batch_size is not None:
            return cached_loss(self.objective, self.encoder, on_device, self.mini_batch_size)
        return self.objective(self.encoder, on_device)

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute activations in the backward pass; the options are those of the language model's own method."""
        self.encoder.backbone.causal_lm.activation_checkpointing_enable(**options)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def to_device(part: Any, device: torch.device) -> Any:
    """Return a value of a batch on a device (the copy is asynchronous); numbers and arrays stay on the CPU."""
    if isinstance(part, Tensor):
        return upload(part, device)
    return part.to(device) if hasattr(part, "to") else part
