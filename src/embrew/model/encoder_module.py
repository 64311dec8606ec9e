"""The encoder as a module: texts to rows of token ids, rows to hidden states, states to one vector per text."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embrew.model.adapters import AdapterState
from embrew.model.attention import Attention
from embrew.model.backbone import Backbone
from embrew.model.batching import Cost, default_batch_tokens, encode_rows
from embrew.model.contexts import Demonstrator, PreparedContext, insert
from embrew.model.encode_arguments import check_offered, convert_vectors, options_of_side, read_mteb
from embrew.model.forward import cost_of
from embrew.model.layers import causal_layers
from embrew.model.pooling import Center, embed, new_head
from embrew.model.prefix import PrefixCache, SharedPrefix, can_share
from embrew.settings.base import Base
from embrew.settings.encoder import AttentionMode, EncoderSettings, Pooling
from embrew.text.template import Template
from embrew.text.texts import Text, check_boolean, check_integer, texts_of
from embrew.text.tokens import Row, Segment, Tokens, select_masked

logger = logging.getLogger(__name__)


class CardFacts(TypedDict, total=False):
    """Facts of a training that the model card is written from; the content of `training.json`.

    Attributes:
        stage: the last stage.
        objectives: type of the objective, by stage.
        arithmetic: dtype of matrix products, by stage.
        recipe: the recipe as YAML.
        data: data sets by stage, each with `name`, `hub`, `split`, `rows`, …, as in `run.json`.
        scores: scores by set, after each stage; `base`: before the first one.
        curves: learning curves by stage.
        kept: the step whose weights were kept, by stage.
        about: kind, split, size and metric of the evaluation sets.
        before: facts of the encoder that training started from.
        averaged: method, weights and inputs of an average, with the facts of the inputs as `records`.
    """

    stage: str
    objectives: dict[str, str]
    arithmetic: dict[str, str]
    recipe: str
    data: dict[str, list[dict[str, Any]]]
    scores: dict[str, dict[str, float]]
    curves: dict[str, list[Any]]
    kept: dict[str, int]
    about: dict[str, dict[str, str]]
    before: CardFacts
    averaged: dict[str, Any]


class EncoderModule(nn.Module):
    """A causal LM, or a BERT-type encoder, with its template, attention and pooling, and `encode`.

    `embrew.encoder.Encoder` is the public subclass, which adds opening, saving and generating. The functions that it
    calls (of contexts, hashes, generation, files) take this base class, since they cannot import the subclass.

    Attributes:
        settings: template, attention, pooling, prompts and length limits.
        backbone: the language model, with its learned tokens and adapter.
        tokenizer: tokenizer of the language model.
        base: name and revision, or checksum, of the model that weights are saved relative to.
        attention: the attention pattern in use.
        head: trained module before pooling (`LatentAttention`, `Projection`) or after it (`DenseLayers`), or None.
        center: fitted layer after `head` and pooling, which subtracts a mean and components; or None.
        demonstrator: trained part of in-context demonstrations, with their settings; None: prompts have none.
        templates: the template; or several, and the embedding is the mean over them, before normalising (MetaEOL).
        contexts: prompts with demonstrations, by name; `encode` takes these names as it does those of `prompts`.
        truncate_dim: number of leading dimensions that embeddings keep; None: all.
        num_layers: number of layers kept by `cutting.cut`; None: all.
        merged_adapters: adapters of earlier stages that were merged into the base's weights, in the order of merging.
        merged_to_encode: whether the last of `merged_adapters` was merged when the encoder was opened, to encode
            faster; it is saved as the adapter that a stage may continue.
        steps: number of optimiser steps trained so far.
        compute_dtype: dtype of the matrix products in the last training, or None.
        recipe: resolved recipe of its training, as YAML, or None.
        card_facts: facts about data and scores of the training, for the model card, or None.
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
            pooled_states = "some of them" if self.pooling.slots is not None else "their concatenated states"
            self.template.check_all_memory(f"pooling over {pooled_states}")
        head = new_head(self.pooling, backbone.hidden_size)
        self.head = None if head is None else head.to(backbone.device)
        self.center: Center | None = None
        if self.pooling.center:
            self.center = Center(self.pooled_dimensions, self.pooling.components or 0).to(backbone.device)
        self.demonstrator: Demonstrator | None = None
        if self.settings.demonstrations is not None:
            backbone.check_decoder("a prompt with demonstrations")
            self.demonstrator = Demonstrator(self.settings.demonstrations, backbone.hidden_size).to(backbone.device)
        self.check_max_length()
        self.contexts: dict[str, PreparedContext] = {}
        self.truncate_dim: int | None = None
        self.num_layers: int | None = None
        self.merged_adapters: list[AdapterState] = []
        self.merged_to_encode = False
        self.steps = 0
        self.compute_dtype: str | None = None
        self.recipe: str | None = None
        self.card_facts: CardFacts | None = None

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
            inputs: a text, or several in any container (`text.texts`); a text may also be a list of token ids. Empty
                texts are embedded like any other (see `Pooling` for what a text without tokens gives).
            prompt_name: name of a stored prompt that fills `{instruction}`, or of a context, whose demonstrations
                precede the text.
            prompt: the prompt itself; wins over `prompt_name`.
            batch_size: texts per batch, where `batch_tokens` is not given; None: batches by tokens.
            show_progress_bar: show one; by default only at log level INFO or below.
            output_value: only `sentence_embedding` is supported.
            precision: `float32` or None; `int8`, `uint8`, `binary`, `ubinary` as Sentence-Transformers quantises.
            convert_to_numpy: an array; otherwise a list of tensors.
            convert_to_tensor: one tensor; wins over `convert_to_numpy`.
            device: move the encoder there first.
            normalize_embeddings: unit length, also where the encoder itself does not normalise.
            truncate_dim: number of leading dimensions to keep, before normalising.
            pool: not supported, nor is `chunk_size`; run one process per device.
            chunk_size: see `pool`.
            num_layers: number of layers to run.
            batch_tokens: budget of padded tokens per batch, instead of `batch_size`; where neither is given, 2,048 on
                a CPU and 16,384 on a GPU.
            max_length: maximum number of tokens, instead of the longer of the encoder's limits (query, document).
            **mteb: keyword arguments with which mteb calls; `inputs` are then its batches, and its `prompt_type`
                selects prompt and length limit.

        Returns:
            Float32 `(texts, dimensions)`, or `(dimensions,)` for a single text.

        Raises:
            ValueError: an unknown prompt name, invalid Unicode, a non-finite embedding, an unsupported option.
            TypeError: something that is not text, or an option of another type.
        """
        if mteb:
            inputs, prompt_name, max_length = read_mteb(inputs, prompt_name, max_length, self.max_length, mteb)
        check_offered(output_value, precision, pool, chunk_size)
        check_integer("batch_size", batch_size)
        check_integer("batch_tokens", batch_tokens)
        check_integer("num_layers", num_layers, maximum=self.backbone.num_layers)
        limit = check_integer("max_length", max_length, maximum=self.backbone.max_positions) or self.max_seq_length
        truncate_dim = self.truncate_dim if truncate_dim is None else truncate_dim
        if show_progress_bar is None:
            show_progress_bar = logger.isEnabledFor(logging.INFO)
        check_boolean("convert_to_numpy", convert_to_numpy)
        check_boolean("convert_to_tensor", convert_to_tensor)
        texts, single = self.texts_of(inputs)
        instruction, context = self.resolve_prompt(prompt_name, prompt)
        if device is not None:
            self.to(torch.device(device))
        if self.training:
            self.eval()
        dimensions = check_integer("truncate_dim", truncate_dim, maximum=self.pooled_dimensions)
        normalize = check_boolean("normalize_embeddings", normalize_embeddings) or self.settings.normalize
        vectors_by_template = [
            self.embed_rows(
                partial(_rows, template, texts, instruction, context, limit),
                len(texts),
                context=context,
                num_layers=num_layers,
                batch_size=batch_size,
                batch_tokens=batch_tokens,
                dimensions=dimensions,
                normalize=normalize and len(self.templates) == 1,
                show_progress_bar=check_boolean("show_progress_bar", show_progress_bar),
            )
            for template in self.templates
        ]
        vectors = vectors_by_template[0]
        if len(vectors_by_template) > 1:
            vectors = torch.stack(vectors_by_template).mean(0)
            vectors = nn.functional.normalize(vectors, dim=-1) if normalize else vectors
        return convert_vectors(vectors, single, precision, convert_to_numpy, convert_to_tensor)

    def encode_query(
        self, inputs: Text | Iterable[Text], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """`encode` for queries: the prompt `query` and the queries' length limit, unless others are given."""
        return self.encode(inputs, **options_of_side("query", self.max_length, prompt_name, prompt, options))

    def encode_document(
        self, inputs: Text | Iterable[Text], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """`encode` for documents: the prompt `document` and the documents' length limit, unless others are given."""
        return self.encode(inputs, **options_of_side("document", self.max_length, prompt_name, prompt, options))

    def rows_by_text(
        self, texts: Sequence[Text], instruction: str, context: PreparedContext | None, limit: int | None
    ) -> list[list[Row]]:
        """Return the rows of texts, one per template, as `encode` makes them; without a limit, none is truncated."""
        by_template = [
            _rows(template, texts, instruction, context, limit, 0, len(texts)) for template in self.templates
        ]
        return [list(rows) for rows in zip(*by_template, strict=True)]

    def embed_rows(
        self,
        tokenize: Callable[[int, int], list[Row]],
        total: int,
        *,
        context: PreparedContext | None,
        num_layers: int | None,
        batch_size: int | None,
        batch_tokens: int | None,
        dimensions: int | None = None,
        normalize: bool = False,
        show_progress_bar: bool = False,
    ) -> Tensor:
        """Return vectors of rows of one template, float32 `(total, dimensions)` on the CPU.

        Args:
            tokenize: function of start and stop that returns the rows in between (stop excluded).
            total: number of rows.
            context: context that the rows contain.
            num_layers: number of layers to run.
            batch_size: rows per batch, where `batch_tokens` is not given.
            batch_tokens: budget of padded tokens per batch; where neither is given, 2,048 on a CPU and 16,384 on a GPU.
            dimensions: number of leading dimensions to keep; None: all.
            normalize: scale vectors to unit length.
            show_progress_bar: show one.

        Raises:
            NotFinite: a vector is not finite; names the row.
        """
        prefix_cache = self.backbone.prefix_cache or PrefixCache()

        def embed_batch(tokens: Tokens, shared_length: int) -> Tensor:
            tokens = tokens if context is None else tokens.with_soft(context.vectors)
            shared = prefix_cache.shared_by(tokens, shared_length) if shared_length else None
            pooled = self(tokens.to(self.device), num_layers=num_layers, shared=shared)[:, :dimensions]
            return nn.functional.normalize(pooled, dim=-1) if normalize else pooled

        if batch_size is None and batch_tokens is None:
            batch_tokens = default_batch_tokens(self.device)
        with torch.inference_mode():
            return encode_rows(
                tokenize,
                total,
                embed_batch,
                dimensions or self.pooled_dimensions,
                batch_size=batch_size or 1,
                batch_tokens=batch_tokens,
                show_progress_bar=show_progress_bar,
                tokenize_ahead=self.device.type != "cpu",
                share=self.shares_prefixes,
                cost=self.cost,
            )

    def resolve_prompt(
        self, prompt_name: str | None = None, prompt: str | None = None
    ) -> tuple[str, PreparedContext | None]:
        """Return the text for `{instruction}`, and the context where the prompt name is that of one.

        Both are returned together, since another thread may replace the context.
        """
        for argument, value in (("prompt", prompt), ("prompt_name", prompt_name)):
            if not isinstance(value, str | None):
                raise TypeError(f"{argument}={value!r} is a {type(value).__name__}; give a string")
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
        """Return the text for `{instruction}`: the given prompt, a stored one by name, a context's, or the default."""
        return self.resolve_prompt(prompt_name, prompt)[0]

    def texts_of(self, inputs: Any) -> tuple[list[Text], bool]:
        """Return texts as a list, and whether a single one was given; see `text.texts`."""
        num_learned = len(self.backbone.memory_ids) + len(self.backbone.soft_prompt_ids)
        return texts_of(inputs, vocabulary=self.backbone.vocab_size + num_learned)

    @contextmanager
    def fixed(self) -> Iterator[PrefixCache]:
        """Inside a `with` block, keep the keys and values of prompts between calls; the model must not change.

        Training, loading, merging, and adding or switching off an adapter raise RuntimeError inside. Writes into
        tensors are not noticed: prompts would then have keys and values of the old weights.

        Yields:
            The cached prefixes; `max_bytes` limits their memory.

        Examples:
            >>> with encoder.fixed():  # doctest: +SKIP
            ...     vectors = [encoder.encode_query(question) for question in questions]
        """
        prefix_cache = self.backbone.prefix_cache = self.backbone.prefix_cache or PrefixCache()
        prefix_cache.users += 1
        try:
            yield prefix_cache
        finally:  # of several threads the last one ends it
            prefix_cache.users -= 1
            if not prefix_cache.users:
                self.backbone.prefix_cache = None

    @property
    def shares_prefixes(self) -> bool:
        """Whether a prefix that all rows of a call share is computed once: by keys and values of attention alone."""
        inner = self.backbone.inner
        only_attention = not causal_layers(inner) and not getattr(inner, "hidden_size_per_layer_input", None)
        return bool(self.attention.is_causal) and only_attention and can_share(inner)

    def tokenize(
        self, texts: Sequence[Text], *, instruction: str | Sequence[str] = "", max_length: int | None = None
    ) -> Tokens:
        """Apply the template and tokenise texts; return a padded batch on the encoder's device."""
        limit = self.max_seq_length if max_length is None else max_length
        return Tokens.pad(self.template.rows(texts, instruction=instruction, max_length=limit)).to(self.device)

    def hidden_states(self, tokens: Tokens, *, num_layers: int | None = None) -> Tensor:
        """Return final hidden states `(batch, tokens, hidden)` under the encoder's attention."""
        return self.backbone.hidden_states(tokens, self.attention, num_layers=num_layers)

    def forward(self, tokens: Tokens, *, num_layers: int | None = None, shared: SharedPrefix | None = None) -> Tensor:
        """Return pooled embeddings, float32 `(batch, dimensions)`, neither truncated nor normalised.

        `num_layers` and `shared` as in `Backbone.hidden_states`.

        Raises:
            ValueError: fewer layers of an encoder with `pooling.center`.
        """
        self.check_depth(num_layers)
        if shared is None:
            return self.pool(self.backbone.hidden_states(tokens, self.attention, num_layers=num_layers), tokens)
        prefix_states, states = self.backbone.split_states(tokens, self.attention, shared, num_layers=num_layers)
        return self.pool(states, tokens, prefix_states)

    def pool(self, states: Tensor, tokens: Tokens, prefix_states: Tensor | None = None) -> Tensor:
        """Pool states `(batch, tokens, hidden)` to float32 `(batch, dimensions)`, through the head if there is one.

        `prefix_states` as in `pooling.pool`.
        """
        vectors = embed(self.head, self.settings.pooling, states, tokens, prefix_states)
        return vectors if self.center is None else self.center(vectors)

    def check_depth(self, num_layers: int | None) -> None:
        """Raise if these are fewer layers than the encoder's mean and components were computed after."""
        if self.center is not None and num_layers is not None and num_layers < self.backbone.num_layers:
            raise ValueError(
                f"num_layers={num_layers}, but the mean that this encoder subtracts (pooling.center) is that of all "
                f"{self.backbone.num_layers} layers; leave num_layers out, or use the encoder that was centred"
            )

    def layer_embeddings(self, tokens: Tokens, *, num_layers: int | None = None) -> Tensor:
        """Return pooled embeddings of every layer, float32 `(layers, batch, hidden)`; i: `forward(num_layers=i)`.

        Args:
            tokens: a batch.
            num_layers: number of layers to run, the first ones; None: all.

        Raises:
            ValueError: the encoder has `pooling.center`.
        """
        self.check_depth(1)
        pooled = partial(self.pool, tokens=tokens)
        return torch.stack(self.backbone.read_layers(tokens, self.attention, pooled, num_layers=num_layers))

    def memory_states(self, tokens: Tokens) -> Tensor:
        """Return the final hidden states of the memory tokens, `(texts, k, hidden)`."""
        self.template.check_all_memory("a tensor of memory states")
        states = self.hidden_states(tokens)
        return select_masked(states, tokens.host.where(Segment.MEMORY)).view(
            -1, len(self.template.memory_ids), states.shape[-1]
        )

    def make_templates(self, tokenizer: PreTrainedTokenizerBase, memory_ids: Sequence[int]) -> list[Template]:
        """Return the templates of the settings for a tokenizer and ids of memory tokens."""
        learned_ids = memory_ids, self.backbone.soft_prompt_ids
        options = self.settings.template_options
        return [Template(pattern, tokenizer, *learned_ids, **options) for pattern in self.settings.templates]

    def with_settings(self, **changes: Any) -> Self:
        """Return an encoder that shares the weights of this one, with other settings.

        Raises:
            ValueError: settings that do not go together, or that trained weights belong to (`pooling.latents`,
                `demonstrations`).
        """
        changed = copy.copy(self)
        changed.settings = self.settings.replace(**changes)
        trained = ("latents", "heads", "head_width", "projection", "dense", "center", "components")
        if any(getattr(changed.pooling, name) != getattr(self.pooling, name) for name in trained):
            raise ValueError(f"pooling.{', '.join(trained)} belong to trained weights; build another encoder")
        if changed.settings.demonstrations != self.settings.demonstrations:
            raise ValueError("demonstrations belong to trained weights; build another encoder")
        changed.check_max_length()
        changed.settings.check_learned_tokens(len(self.template.memory_ids), len(self.template.soft_prompt_ids))
        if not {"template", *self.settings.template_options}.isdisjoint(changes):
            changed.templates = changed.make_templates(self.tokenizer, self.template.memory_ids)
        if "attention" in changes:
            changed.use_attention(changed.settings.attention)
        return changed

    def check_max_length(self) -> None:
        """Raise if `max_length` exceeds the model's maximum number of positions."""
        limit = self.max_seq_length
        self.backbone.check_row_length(limit, f"max_length={limit}", "set max_length to that or less")

    def use_attention(self, mode: AttentionMode) -> None:
        """Set the attention pattern, and check on a forward pass that the model applies it.

        Raises:
            ValueError: a BERT-type encoder and not `bidirectional`, or the model does not apply it.
        """
        if self.backbone.is_bert_type and mode != "bidirectional":
            raise ValueError(
                f"attention={mode}, but {type(self.backbone.causal_lm).__name__} is a BERT-type encoder, where every "
                "token reads every other; set attention: bidirectional"
            )
        attention = Attention(mode)
        self.backbone.check_attention(attention)
        causal_names = causal_layers(getattr(self.backbone, "inner", None))
        if causal_names and mode == "bidirectional":
            logger.warning(
                "attention=bidirectional changes %d of %d layers; the others (%s) read a text from left to right",
                self.backbone.num_layers - len(causal_names),
                self.backbone.num_layers,
                ", ".join(sorted(set(causal_names))),
            )
        self.attention = attention
        self.settings = self.settings.replace(attention=mode)

    @property
    def pooling(self) -> Pooling:
        """How token states become one vector."""
        return self.settings.pooling

    @property
    def prompts(self) -> dict[str, str]:
        """Texts for `{instruction}`, by name. Can be assigned, as in Sentence-Transformers."""
        return self.settings.prompts

    @prompts.setter
    def prompts(self, prompts: Mapping[str, str]) -> None:
        self.settings = self.settings.replace(prompts=prompts)

    @property
    def max_length(self) -> dict[str, int]:
        """Maximum number of tokens of a `query` and of a `document`, template included. Can be assigned."""
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
        """Estimated cost of a forward pass, by which rows are grouped into batches; another one in training."""
        return cost_of(self.backbone.inner, self.attention, training=self.training)

    @property
    def template(self) -> Template:
        """The template, or the first of several."""
        return self.templates[0]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.backbone.device

    @property
    def max_seq_length(self) -> int:
        """The longer of the limits of queries and documents, in tokens."""
        return max(self.max_length.values())

    @property
    def pooled_dimensions(self) -> int:
        """Dimensions of a pooled vector before `truncate_dim`: of one hidden state, or of several concatenated ones."""
        return self.settings.pooling.dimensions(self.backbone.hidden_size, len(self.backbone.memory_ids))

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of an embedding."""
        return self.pooled_dimensions if self.truncate_dim is None else self.truncate_dim

    get_sentence_embedding_dimension = get_embedding_dimension  # its name before Sentence-Transformers 5.4


def _rows(
    template: Template,
    texts: Sequence[Text],
    instruction: str,
    context: PreparedContext | None,
    limit: int | None,
    start: int,
    stop: int,
) -> list[Row]:
    rows = template.rows(texts[start:stop], instruction=instruction, max_length=limit, first=start)
    return rows if context is None else insert(rows, context.row, template)
