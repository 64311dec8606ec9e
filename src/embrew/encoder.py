"""The encoder: what is trained, saved, exported and served."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embrew import identity
from embrew.encoding import check_offered, convert, embed_texts, of_side, read_mteb, unit
from embrew.files.checksums import NAME as CHECKSUMS
from embrew.generation import Bos, Source, generate
from embrew.model.adapters import AdapterState, adapter_state
from embrew.model.attention import Attention
from embrew.model.backbone import Backbone, MemoryInit
from embrew.model.batching import Cost
from embrew.model.contexts import Context, Demonstrator, PreparedContext, prepare, start
from embrew.model.forward import cost_of
from embrew.model.layers import causal_layers
from embrew.model.pooling import embed, new_head
from embrew.model.prefix import Prefix, Shared, can_share
from embrew.model.weights import cast_weights
from embrew.settings.base import Base, Quantization
from embrew.settings.encoder import AttentionMode, EncoderSettings, Pooling
from embrew.stock import check_as_stock, stock_reading
from embrew.storage.base_model import adapter_of, known_name, open_base, pick_device, pick_dtype
from embrew.storage.opening import SETTINGS, final_stage, knows_base, load_encoder, open_base_again
from embrew.storage.parts import check_folder, check_name
from embrew.storage.peft_folder import apply_adapter
from embrew.storage.saving import save_encoder
from embrew.text.template import Template
from embrew.text.texts import Text, check_boolean, texts_of, check_integer
from embrew.text.tokens import Segment, Tokens, select_masked

logger = logging.getLogger(__name__)


class Encoder(nn.Module):
    """A causal LM, or a BERT-type encoder, as a text encoder, with the `encode` of Sentence-Transformers 6.

    Attributes:
        settings: how it reads texts and what it makes of them.
        base: the LM under it.
        head: module applied to token states before pooling (`LatentAttention`, `Projection`), or None.
        demonstrator: the trained part of demonstrations, with their settings; None: it cannot read any.
        templates: one; or several, and the embedding is the mean over them, before normalising (MetaEOL).
        contexts: prompts with demonstrations, by name; `encode` takes these names as it does those of `prompts`.
        truncate_dim: how many leading dimensions embeddings keep; None: all.
        num_layers: number of layers kept by `cutting`; None: all.
        chain: adapters of earlier stages that were merged into the base's weights, in order.
        merged_to_encode: whether the last of `chain` was merged when the encoder was opened, to encode faster; it is
            saved as the adapter that a stage may continue.
        steps: optimiser steps trained so far.
        arithmetic: dtype of the matrix products in the last training, or None.
        recipe: the resolved recipe it was made by, as YAML, or None.
        record: facts about data and scores of the training, for the model card, or None.
        base_folder: folder of a base without a public name; it is read again when the encoder is saved.
        trust_remote_code: whether code that came with the LM was run.
    """

    base_folder: Path | None = None
    trust_remote_code: bool = False

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: PreTrainedTokenizerBase,
        base: Base,
        settings: EncoderSettings | None = None,
        **changes: Any,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.base = base
        self.settings = (settings or EncoderSettings()).replace(**changes)
        self.settings.check_learned_tokens(len(backbone.memory_ids), len(backbone.soft_prompt_ids))
        self.templates = self.make_templates(tokenizer, backbone.memory_ids)
        self.use_attention(self.settings.attention)
        if self.pooling.slots is not None or self.pooling.mode == "concat":
            how_many = "some of them" if self.pooling.slots is not None else "their concatenated states"
            self.template.check_all_memory(f"pooling over {how_many}")
        head = new_head(self.pooling, backbone.hidden_size)
        self.head = None if head is None else head.to(backbone.device)
        self.demonstrator: Demonstrator | None = None
        if self.settings.demonstrations is not None:
            backbone.check_decoder("a prompt with demonstrations")
            self.demonstrator = Demonstrator(self.settings.demonstrations, backbone.hidden_size).to(backbone.device)
        self.check_longest()
        self.contexts: dict[str, PreparedContext] = {}
        self.truncate_dim: int | None = None
        self.num_layers: int | None = None
        self.chain: list[AdapterState] = []
        self.merged_to_encode = False
        self.steps = 0
        self.arithmetic: str | None = None
        self.recipe: str | None = None
        self.record: dict[str, Any] | None = None

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        adapter: str | Path | None = None,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | torch.device | None = None,
        attn_implementation: str | None = None,
        memory_tokens: int = 0,
        memory_init: MemoryInit | Mapping[str, str] = "vocab",
        soft_prompt_tokens: int = 0,
        trust_remote_code: bool = False,
        seed: int = 42,
        merge_adapter: bool | Literal["auto"] = "auto",
        quantization: str | Mapping[str, Any] | Quantization | None = None,
        settings: EncoderSettings | None = None,
        **changes: Any,
    ) -> Encoder:
        """Open a saved encoder, or put an encoder around a causal LM or a BERT-type model.

        Args:
            name: a folder that embrew saved; or `nano`, `smollm2-135m`, or a folder, GGUF file or Hub id of a causal LM
                or BERT-type encoder; or a LoRA that peft saved, on the base that it names; or a Sentence-Transformers
                model, which keeps its pooling, prompts, limit and layers, and is compared with that library.
            adapter: a folder or Hub id of a LoRA that peft saved, to merge into the LM first.
            revision: Hub revision of the LM.
            dtype: `float32`, `bfloat16`, `auto` (a saved encoder's own; else float32 on a CPU, bfloat16 on a GPU), or
                `as_trained` (of a saved encoder that was trained in bfloat16: that, where the device computes in it).
            device: defaults to the first GPU, else the CPU.
            attn_implementation: the LM's attention kernel: `sdpa`, `eager`, … ; None: the library's choice.
            memory_tokens: how many learned tokens to add (an LM only).
            memory_init: how they start: `vocab`, `noise`, `mean`; or `{"words": TEXT}`, as the tokens of a text, where
                names of special tokens are these tokens.
            soft_prompt_tokens: how many learned tokens a soft prompt has (an LM only).
            trust_remote_code: run code that comes with the LM, also with that of a saved encoder; off unless asked for.
            seed: of the memory tokens' draw.
            merge_adapter: add a saved encoder's adapter to its weights, which is faster: `auto` where the encoder can
                still be saved with it, and rounding to the weights' dtype takes at most a tenth of what it changes.
                False: keep it apart, to train it further or to switch it off. True: always, as a finished part of the
                weights. 4-bit weights stay as they are, with the adapter beside them in float32.
            quantization: keep the linear layers in 4 bits: `nf4`, `fp4`, or a mapping with `type` and `double_quant`
                (`Quantization`); needs the extra `qlora`. A saved encoder says itself how its base is quantised.
            settings: how texts are read (`EncoderSettings`); not for a saved encoder, which has its own.
            **changes: single settings, such as `pooling="mean"`; they override those in `settings`. Without any, a
                causal LM is read at its last token, a BERT-type encoder by its mean. With a template, attention or
                pooling, a Sentence-Transformers model is read in that way instead of its own.

        Raises:
            FileNotFoundError: no such model.
            ValueError: it cannot be opened; settings that do not go together; a Sentence-Transformers model with other
                modules, or that gives other vectors there.
        """
        folder, place = final_stage(Path(name)), pick_device(device)
        how: dict[str, Any] = {"attn_implementation": attn_implementation, "trust_remote_code": trust_remote_code}
        if os.path.lexists(folder / SETTINGS):
            added: dict[str, Any] = {"settings": settings, "memory_tokens": memory_tokens}
            added |= {"soft_prompt_tokens": soft_prompt_tokens, "quantization": quantization, "adapter": adapter}
            own = ", ".join([*sorted(changes), *(key for key, value in added.items() if value)])
            if own:
                raise ValueError(f"{name} is a saved encoder, which has its settings already; leave out {own}")
            return load_encoder(cls, folder, dtype=dtype, device=place, merge_adapter=merge_adapter, **how)
        if (folder / CHECKSUMS).is_file():
            check_folder(folder)  # an encoder without embrew.json is damaged, not a language model
        in_4_bits = None if quantization is None else Quantization.parse(quantization)
        if adapter is None and adapter_of(str(name)) is not None:
            adapter = name
        weights = pick_dtype(dtype, place)
        stock = stock_reading(str(name), settings, changes, weights)
        if stock is not None and revision is not None and not folder.exists():
            raise ValueError(f"{name} is a Sentence-Transformers model; download revision {revision}, give its folder")
        settings = stock.settings if stock is not None and settings is None else settings
        merged = torch.float32 if adapter is not None and in_4_bits is None else weights
        how |= {"dtype": merged, "device": place, "quantization": in_4_bits}
        model, tokenizer, base = open_base(str(name), revision=revision, **how)
        backbone = Backbone(model)
        chain = [] if adapter is None else [apply_adapter(backbone, str(adapter))]
        if merged != weights:
            cast_weights(backbone.causal_lm, weights)
        backbone.to(place)
        rows: Any = memory_init
        if isinstance(rows, Mapping):
            if list(rows) != ["words"] or not isinstance(rows["words"], str):
                raise ValueError(f'memory_init={dict(rows)!r}; give vocab, noise, mean, or {{"words": TEXT}}')
            rows = tokenizer(rows["words"], add_special_tokens=False)["input_ids"]
        if memory_tokens:
            backbone.add_memory(memory_tokens, rows, seed=seed)
        if soft_prompt_tokens:
            backbone.add_soft_prompt(soft_prompt_tokens, rows, seed=seed)
        if backbone.is_encoder and settings is None:
            longest = int(min(backbone.max_positions, 512))
            settings = EncoderSettings.create(attention="bidirectional", pooling="mean", max_length=longest)
        encoder = cls(backbone, tokenizer, base, settings, **changes).eval()
        if encoder.pooling.dense is not None:
            if stock is None or stock.settings.pooling.dense != encoder.pooling.dense:
                raise ValueError(
                    f"pooling.dense is not that of {name}; only a Sentence-Transformers model has such layers"
                )
            encoder.head.load_state_dict(stock.dense)  # type: ignore[union-attr]
        if stock is not None and in_4_bits is None:
            check_as_stock(str(name), stock, encoder)
        encoder.chain = chain
        encoder.trust_remote_code = trust_remote_code
        if base.kind == "folder":
            encoder.base_folder = Path(known_name(str(name))).absolute()  # it is read again when the encoder is saved
        start(encoder, seed=seed)
        return encoder

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        verify: str = "fast",
        recipe: str | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """Write the encoder and verify what was written.

        Args:
            folder: where to; must not exist, unless `overwrite`.
            overwrite: replace an existing encoder folder.
            verify: `fast` re-opens tokenizer, settings and tensors and compares them, and the whole folder where the
                weights under the adapter are not the base's, or may not be; `full` loads it in a fresh process; `off`.
            recipe: the resolved recipe as YAML, saved in the folder.
            extra: further text files for the folder, by name.

        Raises:
            FileExistsError: the folder exists.
            RuntimeError: what was written does not give the same vectors; the folder is removed.
        """
        texts = dict(extra or {})
        if recipe or self.recipe:
            texts["recipe.yaml"] = recipe or self.recipe or ""
        save_encoder(self, Path(folder), overwrite=overwrite, verify=verify, texts=texts)

    def encode(
        self,
        inputs: Text | Iterable[Text],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        num_layers: int | None = None,
        batch_tokens: int | None = None,
        max_length: int | None = None,
        **mteb: Any,
    ) -> np.ndarray | Tensor | list[Tensor]:
        """Embed texts; arguments as in Sentence-Transformers 6, followed by three of embrew.

        Args:
            inputs: a text or several, in any container (`text.texts`); a text may also be a list of token ids. Empty
                texts are embedded like any other (see `Pooling` for what a text without tokens gives).
            prompt_name: name of a stored prompt that fills `{instruction}`, or of a context, whose demonstrations
                precede the text.
            prompt: the prompt itself; wins over `prompt_name`.
            batch_size: texts per batch, where `batch_tokens` is not given; None: batches by tokens.
            show_progress_bar: show one; by default only at log level INFO or below.
            output_value: only `sentence_embedding`.
            precision: `float32` or None; `int8`, `uint8`, `binary`, `ubinary` as Sentence-Transformers quantises.
            convert_to_numpy: an array; otherwise a list of tensors.
            convert_to_tensor: one tensor; wins over `convert_to_numpy`.
            device: move the encoder there first.
            normalize_embeddings: unit length, also where the encoder itself does not normalise.
            truncate_dim: number of leading dimensions to keep, before normalising.
            pool: not offered, nor is chunk_size; run one process per device.
            chunk_size: see `pool`.
            num_layers: number of layers to run.
            batch_tokens: budget of padded tokens per batch, instead of `batch_size`; where neither is given, 2,048 on
                a CPU and 16,384 on a GPU.
            max_length: limit in tokens, instead of the longer of the encoder's two.
            **mteb: keywords of mteb's calls: `inputs` are then its batches, and `prompt_type` decides on prompt
                and limit.

        Returns:
            Float32 `(texts, dimensions)`, or `(dimensions,)` for a single text.

        Raises:
            ValueError: an unknown prompt name, invalid Unicode, a non-finite embedding, an option not offered.
            TypeError: something that is not text, or an option of another type.
        """
        if mteb:
            inputs, prompt_name, max_length = read_mteb(self, inputs, prompt_name, max_length, mteb)
        check_offered(output_value, precision, pool, chunk_size)
        check_integer("batch_size", batch_size)
        check_integer("batch_tokens", batch_tokens)
        check_integer("num_layers", num_layers, maximum=self.backbone.num_layers)
        limit = check_integer("max_length", max_length, maximum=self.backbone.max_positions) or self.max_seq_length
        truncate_dim = self.truncate_dim if truncate_dim is None else truncate_dim
        if show_progress_bar is None:
            show_progress_bar = logger.isEnabledFor(logging.INFO)
        as_numpy, as_tensor = check_boolean("convert_to_numpy", convert_to_numpy), check_boolean("convert_to_tensor", convert_to_tensor)
        texts, single = self.texts_of(inputs)
        instruction, context = self.resolve_prompt(prompt_name, prompt)
        if device is not None:
            self.to(torch.device(device))
        if self.training:
            self.eval()
        vectors = embed_texts(
            self,
            texts,
            instruction,
            context,
            limit,
            num_layers=num_layers,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            dimensions=check_integer("truncate_dim", truncate_dim, maximum=self.width),
            normalize=check_boolean("normalize_embeddings", normalize_embeddings) or self.settings.normalize,
            show_progress_bar=check_boolean("show_progress_bar", show_progress_bar),
        )
        return convert(vectors, single, precision, as_numpy, as_tensor)

    def encode_query(
        self, inputs: Text | Iterable[Text], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """`encode` for queries: the prompt `query` and the queries' length limit, unless others are given."""
        return self.encode(inputs, **of_side(self, "query", prompt_name, prompt, options))

    def encode_document(
        self, inputs: Text | Iterable[Text], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """`encode` for documents: the prompt `document` and the documents' length limit, unless others are given."""
        return self.encode(inputs, **of_side(self, "document", prompt_name, prompt, options))

    def resolve_prompt(
        self, prompt_name: str | None = None, prompt: str | None = None
    ) -> tuple[str, PreparedContext | None]:
        """Return what fills `{instruction}`, and the context of a prompt name that is one.

        Both are returned together, since another thread may replace the context.
        """
        for what, value in (("prompt", prompt), ("prompt_name", prompt_name)):
            if not isinstance(value, str | None):
                raise TypeError(f"{what}={value!r} is a {type(value).__name__}; give a string")
        if prompt is not None:
            return prompt, None
        name = self.settings.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return "", None
        context = self.contexts.get(name)
        if context is not None:
            return context.context.instruction, context
        prompts = self.settings.prompts
        if name not in prompts:
            names = ", ".join(sorted([*prompts, *self.contexts]))
            raise ValueError(f"prompt_name={name!r}; this encoder has {names}")
        return prompts[name], None

    def instruction(self, prompt_name: str | None = None, prompt: str | None = None) -> str:
        """Return what fills `{instruction}`: the prompt itself, one by name, that of a context, or the default one."""
        return self.resolve_prompt(prompt_name, prompt)[0]

    def add_context(self, name: str, context: Context) -> PreparedContext:
        """Embed the demonstrations of a context, and keep it under a name that `encode` takes as `prompt_name`.

        Its vectors are computed with the current weights: add it again after further training, or save the
        encoder, which computes them again.

        Raises:
            ValueError: the name is that of a prompt; or see `model.contexts.prepare`.
        """
        if name in self.prompts:
            raise ValueError(f"context {name!r}: a prompt has this name already; choose another")
        check_name(name)
        self.contexts[name] = replace(prepare(self, context), model_hash=identity.vectors_hash(self))
        return self.contexts[name]

    def texts_of(self, inputs: Any) -> tuple[list[Text], bool]:
        """Return texts as a list, and whether a single one was given; see `text.inputs`."""
        learned = len(self.backbone.memory_ids) + len(self.backbone.soft_prompt_ids)
        return texts_of(inputs, vocabulary=self.backbone.vocab_size + learned)

    @contextmanager
    def fixed(self) -> Iterator[Prefix]:
        """Within this context, prompts and contexts are computed once for all calls, and the model must not change.

        Training, loading, merging, a new adapter, and switching it off raise RuntimeError inside. Writes into tensors
        are not noticed: vectors would then belong to the old weights in part.

        Yields:
            The prefixes; `most` is their memory in bytes.

        Examples:
            >>> with encoder.fixed():  # doctest: +SKIP
            ...     vectors = [encoder.encode_query(question) for question in questions]
        """
        prefix = self.backbone.kept_prefix = self.backbone.kept_prefix or Prefix()
        prefix.users += 1
        try:
            yield prefix
        finally:  # of several threads the last one ends it
            prefix.users -= 1
            if not prefix.users:
                self.backbone.kept_prefix = None

    @property
    def shares_prefixes(self) -> bool:
        """Whether a prefix that all rows of a call share is computed once: by keys and values of attention alone."""
        inner = self.backbone.inner
        attends = not causal_layers(inner) and not getattr(inner, "hidden_size_per_layer_input", None)
        return bool(self.attention.is_causal) and attends and can_share(inner)

    def tokens(
        self, texts: Sequence[Text], *, instruction: str | Sequence[str] = "", max_length: int | None = None
    ) -> Tokens:
        """Return a padded batch on the encoder's device, as the template makes it."""
        limit = self.max_seq_length if max_length is None else max_length
        return Tokens.pad(self.template.rows(texts, instruction=instruction, max_length=limit)).to(self.device)

    def hidden_states(self, tokens: Tokens, *, num_layers: int | None = None) -> Tensor:
        """Return final hidden states `(batch, tokens, hidden)` under the encoder's attention."""
        return self.backbone.hidden_states(tokens, self.attention, num_layers=num_layers)

    def forward(self, tokens: Tokens, *, num_layers: int | None = None, shared: Shared | None = None) -> Tensor:
        """Return pooled embeddings, float32 `(batch, dimensions)`, neither truncated nor normalised.

        `num_layers` and `shared` as in `Backbone.hidden_states`.
        """
        if shared is None:
            return self.pool(self.backbone.hidden_states(tokens, self.attention, num_layers=num_layers), tokens)
        before, states = self.backbone.split_states(tokens, self.attention, shared, num_layers=num_layers)
        return self.pool(states, tokens, before)

    def pool(self, states: Tensor, tokens: Tokens, before: Tensor | None = None) -> Tensor:
        """Pool states `(batch, tokens, hidden)` to float32 `(batch, dimensions)`, through the head if there is one.

        `before` as in `Pooling`.
        """
        return embed(self.head, self.settings.pooling, states, tokens, before)

    def layers(self, tokens: Tokens, *, num_layers: int | None = None) -> Tensor:
        """Return pooled embeddings of every layer, float32 `(layers, batch, hidden)`; i: `forward(num_layers=i)`.

        Args:
            tokens: a batch.
            num_layers: of the first few layers only; the others are not run.
        """
        pooled = partial(self.pool, tokens=tokens)
        return torch.stack(self.backbone.read_layers(tokens, self.attention, pooled, num_layers=num_layers))

    def memory(self, tokens: Tokens) -> Tensor:
        """Return states of the memory tokens: `(texts, k, hidden)`."""
        self.template.check_all_memory("a tensor of memory states")
        states = self.hidden_states(tokens)
        return select_masked(states, tokens.host.where(Segment.MEMORY)).view(-1, len(self.template.memory_ids), states.shape[-1])

    def make_templates(self, tokenizer: PreTrainedTokenizerBase, memory_ids: Sequence[int]) -> list[Template]:
        """Return the templates that the settings ask for, on a tokenizer and memory tokens."""
        learned = memory_ids, self.backbone.soft_prompt_ids
        options = self.settings.template_options
        return [Template(pattern, tokenizer, *learned, **options) for pattern in self.settings.templates]

    def with_settings(self, **changes: Any) -> Self:
        """Return the same model, on the same weights, with other settings.

        Raises:
            ValueError: settings that do not go together, or that trained weights belong to (`pooling.latents`,
                `demonstrations`).
        """
        changed = copy.copy(self)
        changed.settings = self.settings.replace(**changes)
        trained = ("latents", "heads", "head_width", "projection", "dense")
        if any(getattr(changed.pooling, name) != getattr(self.pooling, name) for name in trained):
            raise ValueError(f"pooling.{', '.join(trained)} belong to trained weights; build another encoder")
        if changed.settings.demonstrations != self.settings.demonstrations:
            raise ValueError("demonstrations belong to trained weights; build another encoder")
        changed.check_longest()
        changed.settings.check_learned_tokens(len(self.template.memory_ids), len(self.template.soft_prompt_ids))
        if not {"template", *self.settings.template_options}.isdisjoint(changes):
            changed.templates = changed.make_templates(self.tokenizer, self.template.memory_ids)
        if "attention" in changes:
            changed.use_attention(changed.settings.attention)
        return changed

    def check_longest(self) -> None:
        """Raise where `max_length` exceeds the model's positions."""
        longest = self.max_seq_length
        self.backbone.check_longest(longest, f"max_length={longest}", "set max_length to that or less")

    def use_attention(self, mode: AttentionMode) -> None:
        """Set the attention, and measure that the model follows it.

        Raises:
            ValueError: a BERT-type encoder has one only, or the model does not follow it.
        """
        if self.backbone.is_encoder and mode != "bidirectional":
            raise ValueError(
                f"attention={mode}, but {type(self.backbone.causal_lm).__name__} is a BERT-type encoder, where every "
                "token reads every other; set attention: bidirectional"
            )
        attention = Attention(mode)
        self.backbone.check_attention(attention)
        others = causal_layers(getattr(self.backbone, "inner", None))
        if others and mode == "bidirectional":
            logger.warning(
                "attention=bidirectional changes %d of %d layers; the others (%s) read a text from left to right",
                self.backbone.num_layers - len(others),
                self.backbone.num_layers,
                ", ".join(sorted(set(others))),
            )
        self.attention = attention
        self.settings = self.settings.replace(attention=mode)

    @property
    def pooling(self) -> Pooling:
        """How token states become one vector."""
        return self.settings.pooling

    @property
    def prompts(self) -> dict[str, str]:
        """What fills `{instruction}`, by name. Can be assigned, as in Sentence-Transformers."""
        return self.settings.prompts

    @prompts.setter
    def prompts(self, prompts: Mapping[str, str]) -> None:
        self.settings = self.settings.replace(prompts=prompts)

    @property
    def max_length(self) -> dict[str, int]:
        """Limits in tokens, of a query's row and of a document's. Can be assigned."""
        return self.settings.max_length

    @max_length.setter
    def max_length(self, max_length: int | Mapping[str, int]) -> None:
        self.settings = self.with_settings(max_length=max_length).settings

    @property
    def normalize(self) -> bool:
        """Whether embeddings have unit length. Can be assigned."""
        return self.settings.normalize

    @normalize.setter
    def normalize(self, normalize: bool) -> None:
        self.settings = self.settings.replace(normalize=normalize)

    @property
    def default_prompt_name(self) -> str | None:
        """The prompt that is used where none is named. Can be assigned, as in Sentence-Transformers."""
        return self.settings.default_prompt_name

    @default_prompt_name.setter
    def default_prompt_name(self, name: str | None) -> None:
        self.settings = self.settings.replace(default_prompt_name=name)

    @property
    def cost(self) -> Cost:
        """What a forward pass takes, in training or not."""
        return cost_of(self.backbone.inner, self.attention, training=self.training)

    @property
    def template(self) -> Template:
        """The template; the first, where there are several."""
        return self.templates[0]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.backbone.device

    @property
    def max_seq_length(self) -> int:
        """The longer of the two limits, in tokens."""
        return max(self.max_length.values())

    @property
    def width(self) -> int:
        """Dimensions of a pooled vector: those of a state, or of the concatenated states of all memory tokens."""
        return self.settings.pooling.dimensions(self.backbone.hidden_size, len(self.backbone.memory_ids))

    def get_embedding_dimension(self) -> int:
        """Return dimensions of an embedding."""
        return self.width if self.truncate_dim is None else self.truncate_dim

    get_sentence_embedding_dimension = get_embedding_dimension  # its name before Sentence-Transformers 5.4

    def keep_frozen_lm(self) -> None:
        """Keep the original LM available, for objectives that compare with it; see `Backbone.keep_frozen_lm`.

        It is opened again and compared with the weights inside; where these differ, it stays as a second copy.
        """
        if self.backbone.frozen_copy is None:
            self.backbone.check_decoder("this objective")
            self.backbone.keep_frozen_lm(open_base_again(self) if knows_base(self) else None)
            if self.backbone.frozen_copy is not None:
                logger.info("a second copy of the original %s is in memory", self.base.name)

    def merge_adapter(self) -> None:
        """Add the adapter to the weights; if these are the base's, keep it in `chain`, so that saving can replay it.

        A stage then trains a new adapter; one that was merged when the encoder was opened is not continued either.
        """
        self.merged_to_encode = False
        if isinstance(self.backbone.model, PeftModel):
            if not self.backbone.owns_weights:
                self.chain.append(adapter_state(self.backbone.model))
            self.backbone.merge_adapter()

    def generate(
        self,
        texts: str | Sequence[str],
        *,
        source: Source = "memory",
        bos: Bos = "visible",
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 16,
        show_progress_bar: bool = False,
        **options: Any,
    ) -> str | list[str]:
        """Return what the model writes after each text, as queries are read; greedily, unless `options` say otherwise.

        Args:
            texts: a text or a list of texts.
            source: `memory`: from the memory tokens alone (LBR's bottleneck); `text`: from all that was read.
            bos: with `memory`, whether what is written may read BOS too; as in training.
            prompt_name: name of a stored prompt that fills `{instruction}`; without it, that of queries.
            prompt: the prompt itself; wins over `prompt_name`.
            batch_size: texts per batch.
            show_progress_bar: show one.
            **options: those of `generate` in transformers: `max_new_tokens` (128), `do_sample`, `temperature`, `top_p`,
                `num_beams`, … With `num_return_sequences`, each text has that many consecutive answers.

        Raises:
            ValueError: no causal LM, not under causal attention, no bottleneck for `source="memory"`, an option that
                would undo it, or a text beyond a sliding window.
        """
        if self.training:
            self.eval()
        read, single = self.texts_of(texts)
        instruction = self.instruction("query" if prompt_name is prompt is None else prompt_name, prompt)
        options |= {"source": source, "bos": bos, "batch_size": batch_size, "show_progress_bar": show_progress_bar}
        written = generate(self, read, instruction=instruction, max_tokens=self.max_length["query"], **options)
        return written[0] if single and len(written) == 1 else written

    def describe(self) -> dict[str, Any]:
        """Return base, settings, dtype and size, for result files."""
        return identity.describe(self)

    def weights_hash(self) -> str:
        """Return sha256 of what decides the vectors: base, settings, memory tokens, adapters, trained weights."""
        return identity.weights_hash(self)

    @property
    def similarity_fn_name(self) -> str:
        """Always `cosine`."""
        return "cosine"

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        if str(getattr(name, "value", name)) != "cosine":
            raise ValueError(f"similarity_fn_name={name!r}; an encoder's vectors are compared by cosine")

    def similarity(self, a: Any, b: Any) -> Tensor:
        """Return cosine of every pair, float32 `(len(a), len(b))`."""
        return unit(a) @ unit(b).T

    def similarity_pairwise(self, a: Any, b: Any) -> Tensor:
        """Return cosine of a[i] and b[i], float32 `(len(a),)`."""
        return (unit(a) * unit(b)).sum(-1)

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Within this context, embeddings keep that many leading dimensions where a call does not say otherwise."""
        before = self.truncate_dim
        self.truncate_dim = check_integer("truncate_dim", truncate_dim, maximum=self.width)
        try:
            yield
        finally:
            self.truncate_dim = before

    @property
    def model_card_data(self) -> identity.CardData:
        """Where evaluators put their metrics."""
        return identity.CardData(self, self.__dict__.setdefault("_evaluation_metrics", {}))

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb notes about the model: its name, the hash of what decides its vectors, and cosine."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        about = {"name": f"embrew/{Path(self.base.name).name}", "revision": self.weights_hash()}
        return ModelMeta.create_empty(overwrites={**about, "similarity_fn_name": ScoringFunction.COSINE})
