"""One copy of a language model in memory: it chats as it is, and embeds as each of the encoders trained on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from embrew.chat import Answer, Message, Sampling, prompt_ids, write
from embrew.encoder import Encoder
from embrew.files.writing import read_unchanged
from embrew.machine import release_memory
from embrew.model.forward import forward, masks_for
from embrew.model.weights import on_same_tensors
from embrew.settings.base import Base
from embrew.storage.base_model import open_base, pick_device, pick_dtype
from embrew.storage.loading import SETTINGS as MARKER
from embrew.storage.loading import load_on_base, trained_folder
from embrew.text.tokens import Row, Tokens

MAX_ENCODERS = 16


class Resident:
    """A language model, and encoders by name that share its tensors: each costs its LoRA, learned tokens and head.

    The modules of an encoder are its own, so none of them switches what another one, or a chat, computes.

    Attributes:
        model: the language model, without adapters.
        tokenizer: its tokenizer.
        base: its identifier.
        max_encoders: number of encoders that may be loaded.

    Examples:
        >>> resident = Resident.open("out/base")  # doctest: +SKIP
        >>> legal = resident.load("legal", "out/legal")  # doctest: +SKIP
        >>> legal.encode_query(["Who is liable?"])  # doctest: +SKIP
        >>> resident.chat([{"role": "user", "content": "Who is liable?"}]).text  # doctest: +SKIP
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        base: Base,
        *,
        max_encoders: int = MAX_ENCODERS,
    ) -> None:
        self.model, self.tokenizer, self.base, self.max_encoders = model, tokenizer, base, max_encoders
        self._encoders: dict[str, Encoder] = {}
        self._together = Together(model, {})
        self._changing = threading.Lock()

    @classmethod
    def open(
        cls,
        name: str | Path,
        *,
        dtype: str = "auto",
        device: str | torch.device | None = None,
        max_encoders: int = MAX_ENCODERS,
    ) -> Resident:
        """Open a language model.

        Args:
            name: `nano`, or a folder, GGUF file or Hub id of a language model.
            dtype: `float32`, `bfloat16`, or `auto`: float32 on a CPU, bfloat16 on a GPU; also that of the encoders.
            device: defaults to the first GPU, else the CPU.
            max_encoders: number of encoders that may be loaded.

        Raises:
            FileNotFoundError: no such model.
            ValueError: it cannot be opened.
        """
        on = pick_device(device)
        model, tokenizer, base = open_base(str(name), dtype=pick_dtype(dtype, on))
        model.requires_grad_(False).to(on)  # type: ignore[arg-type]
        return cls(model, tokenizer, base, max_encoders=max_encoders)

    @property
    def encoders(self) -> Mapping[str, Encoder]:
        """The loaded encoders by name."""
        return dict(self._encoders)

    def load(self, name: str, folder: str | Path) -> Encoder:
        """Load an encoder under a name: a folder of an encoder, or of a training run.

        Raises:
            FileNotFoundError: it is no encoder's folder.
            ValueError: the name is in use, there are `max_encoders`, or the encoder is not adapters on this base.
        """
        self._check_room(name)
        path = trained_folder(folder)
        encoder = read_unchanged(path, MARKER, partial(load_on_base, Encoder, path, self.model, self.base))
        with self._changing:
            self._check_room(name)
            for other in self._encoders.values():
                if _same_tokenizer(encoder.tokenizer, other.tokenizer):
                    _set_tokenizer(encoder, other.tokenizer)
                    break
            self._replace({**self._encoders, name: encoder})
        release_memory()
        return encoder

    def unload(self, name: str) -> None:
        """Remove an encoder; its memory is freed once no one else refers to it.

        Raises:
            ValueError: there is none of this name.
        """
        with self._changing:
            if name not in self._encoders:
                raise ValueError(f"no encoder {name!r}; loaded are {', '.join(self._encoders) or 'none'}")
            self._replace({other: encoder for other, encoder in self._encoders.items() if other != name})
        release_memory()  # modules and their hooks refer to each other

    def _check_room(self, name: str) -> None:
        if name in self._encoders:
            raise ValueError(f"an encoder {name!r} is loaded; unload it first, or choose another name")
        if len(self._encoders) >= self.max_encoders:
            raise ValueError(f"{len(self._encoders)} encoders are loaded, which is max_encoders; unload one first")

    def _replace(self, encoders: dict[str, Encoder]) -> None:
        self._encoders, self._together = encoders, Together(self.model, encoders)

    def embed_rows(self, encoders: Sequence[Encoder], rows: Sequence[Row]) -> list[Tensor] | None:
        """Return pooled vectors of rows of several encoders, from one forward pass; products of the base are common.

        Args:
            encoders: the encoder of each row; all with the same attention.
            rows: rows as of `Encoder.rows_by_text`, without vectors of contexts.

        Returns:
            Float32 `(dimensions,)` per row, neither truncated nor normalised; None where an encoder is no longer
            loaded.
        """
        return self._together.embed_rows(encoders, rows)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        sampling: Sampling | None = None,
        chat_template: str | None = None,
        send: Callable[[str], None] = lambda text: None,
    ) -> Answer:
        """Return the language model's answer to messages, each with `role` and `content`.

        Args:
            messages: the conversation.
            sampling: how tokens are drawn, and when the answer ends.
            chat_template: a Jinja template in place of the tokenizer's.
            send: called with each part of the text as it is written.

        Raises:
            ValueError: the tokenizer has no chat template, or the template refuses the messages.
        """
        ids = prompt_ids(self.tokenizer, messages, chat_template)
        return write(self.model, self.tokenizer, ids, sampling or Sampling(), send=send)


class Together:
    """The modules of a language model with the LoRAs of several encoders, each of which changes its own rows.

    Args:
        model: the language model; its tensors are shared.
        encoders: the encoders by name; theirs, too.
    """

    def __init__(self, model: PreTrainedModel, encoders: Mapping[str, Encoder]) -> None:
        self.numbers = {id(encoder): number for number, encoder in enumerate(encoders.values())}
        self.encoders = list(encoders.values())  # whose ids above are no other object's
        self.rows = Rows()
        loras = [_lora_layers(encoder) for encoder in self.encoders]
        self.model: Any = on_same_tensors(model)
        for name in dict.fromkeys(name for layers in loras for name in layers):
            layers = {number: named[name] for number, named in enumerate(loras) if name in named}
            self.model.set_submodule(name, LinearOfSeveral(self.model.get_submodule(name), layers, self.rows))

    def embed_rows(self, encoders: Sequence[Encoder], rows: Sequence[Row]) -> list[Tensor] | None:
        """As `Resident.embed_rows`."""
        numbers = [self.numbers.get(id(encoder)) for encoder in encoders]
        if None in numbers:
            return None
        order = sorted(range(len(rows)), key=lambda i: numbers[i] or 0)
        batch = Tokens.pad([rows[i] for i in order])
        present = [numbers[i] for i in order]
        slices = [
            (number, slice(present.index(number), present.index(number) + present.count(number)))
            for number in dict.fromkeys(present)
            if number is not None
        ]
        parts = [
            (self.encoders[number], Tokens(batch.input_ids[part], batch.segment_ids[part]).to(self.model.device))
            for number, part in slices
        ]
        attention, pooled = encoders[0].attention, list[Tensor]()
        with torch.inference_mode():
            masks_for(self.model.base_model, attention)  # measured with the base alone
            embedded = torch.cat([encoder.backbone.embed(tokens) for encoder, tokens in parts])
            self.rows.slices = slices
            try:
                states = forward(self.model.base_model, embedded, batch.to(self.model.device), attention)
            finally:
                self.rows.slices = ()
            for (encoder, tokens), (_, part) in zip(parts, slices, strict=True):
                pooled += encoder.pool(states[part], tokens).cpu()
        vectors = dict(zip(order, pooled, strict=True))
        return [vectors[i] for i in range(len(rows))]


class Rows(threading.local):
    """Which rows of the batch that this thread computes are of which encoder, by its number."""

    slices: Sequence[tuple[int, slice]] = ()


class LinearOfSeveral(nn.Module):
    """A linear layer, whose product is computed once for all rows, with LoRAs, each on the rows of its encoder."""

    def __init__(self, base: nn.Module, loras: Mapping[int, Any], rows: Rows) -> None:
        super().__init__()
        self.base, self.loras, self.rows = base, loras, rows  # a mapping: they are the encoders', and stay theirs

    def forward(self, x: Tensor) -> Tensor:
        """Return `(batch, tokens, out)` of `(batch, tokens, in)`."""
        output: Tensor = self.base(x)
        for number, part in self.rows.slices:
            if number in self.loras:
                down, up, scaling = self.loras[number]
                output[part] += (((x[part].to(down.dtype) @ down.T) @ up.T) * scaling).to(output.dtype)
        return output


def _same_tokenizer(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> bool:
    texts: list[str] = [tokenizer.backend_tokenizer.to_str() for tokenizer in (a, b)]
    return texts[0] == texts[1] and a.special_tokens_map == b.special_tokens_map


def _set_tokenizer(encoder: Encoder, tokenizer: PreTrainedTokenizerBase) -> None:
    encoder.tokenizer = tokenizer
    for template in encoder.templates:
        template.tokenizer = tokenizer


def _lora_layers(encoder: Encoder) -> dict[str, tuple[Tensor, Tensor, float]]:
    """Return A, B and the scaling of an encoder's LoRA by the name of the layer."""
    layers: dict[str, Any] = {}
    for name, layer in encoder.backbone.causal_lm.named_modules():
        if isinstance(layer, LoraLayer):
            (adapter,) = layer.active_adapters
            parts = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight, layer.scaling[adapter]
            layers[name] = parts
    return layers
