"""Vectors of rows: of texts that are tokenised already, with their prompt or context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from embrew.model.batching import encode_rows, usual_tokens
from embrew.model.contexts import PreparedContext, insert
from embrew.model.embedding_model import EmbeddingModel
from embrew.model.prefix import Prefix
from embrew.text.inputs import Text
from embrew.text.template import Template
from embrew.text.tokens import Row, Tokens


class RowEmbedder(EmbeddingModel):
    """An embedding model in two steps: from texts to rows, which a server can collect, and from rows to vectors."""

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
        outer = self.backbone.kept_prefix
        self.backbone.kept_prefix = outer or Prefix()
        try:
            yield self.backbone.kept_prefix
        finally:
            self.backbone.kept_prefix = outer

    @property
    def shares_prefixes(self) -> bool:
        """Whether a prefix that all rows of a call share is computed once."""
        return bool(self.attention.is_causal)

    def rows(
        self,
        texts: Sequence[Text],
        *,
        instruction: str = "",
        context: PreparedContext | None = None,
        max_length: int | None = None,
    ) -> list[list[Row]]:
        """Return the rows of texts, one per template, as `encode` makes them; without a limit, none is truncated.

        Args:
            texts: strings or lists of token ids, as `texts_of` returns them.
            instruction: what fills `{instruction}`.
            context: whose demonstrations precede the text.
            max_length: limit in tokens, without those of a context.
        """
        parts = [
            self._rows(template, texts, instruction, max_length, context, 0, len(texts)) for template in self.templates
        ]
        return [list(rows) for rows in zip(*parts, strict=True)]

    def embed_rows(
        self,
        rows: Sequence[Row],
        *,
        context: PreparedContext | None = None,
        num_layers: int | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
    ) -> Tensor:
        """Return pooled vectors of rows, float32 `(rows, dimensions)` on the CPU, neither truncated nor normalised.

        Args:
            rows: of one template.
            context: with which they were made.
            num_layers: number of layers to run.
            batch_size: rows per batch, where `batch_tokens` is not given.
            batch_tokens: budget of padded tokens per batch; where neither is given, 2,048 on a CPU and 16,384 on a GPU.

        Raises:
            NotFinite: a vector is not finite; names the row.
        """
        return self._embed(
            lambda start, stop: list(rows[start:stop]),
            len(rows),
            keep=self.width,
            unit=False,
            context=context,
            num_layers=num_layers,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            show_progress_bar=False,
        )

    def _embed(
        self,
        rows_of: Callable[[int, int], list[Row]],
        total: int,
        *,
        keep: int,
        unit: bool,
        context: PreparedContext | None,
        num_layers: int | None,
        batch_size: int | None,
        batch_tokens: int | None,
        show_progress_bar: bool,
    ) -> Tensor:
        prefix = self.backbone.kept_prefix or Prefix()

        def embed(tokens: Tokens, count: int) -> Tensor:
            tokens = tokens if context is None else tokens.with_soft(context.vectors)
            shared = prefix.at(tokens, count)
            pooled = self(tokens.to(self.device), num_layers=num_layers, shared=shared)[:, :keep]
            return nn.functional.normalize(pooled, dim=-1) if unit else pooled

        if batch_size is None and batch_tokens is None:
            batch_tokens = usual_tokens(self.device)
        with torch.inference_mode():
            return encode_rows(
                rows_of,
                total,
                embed,
                keep,
                batch_size=batch_size or 1,
                batch_tokens=batch_tokens,
                show_progress_bar=show_progress_bar,
                tokenize_ahead=self.device.type != "cpu",
                share=self.shares_prefixes,
                cost=self.cost,
            )

    @staticmethod
    def _rows(
        template: Template,
        texts: Sequence[Text],
        instruction: str,
        limit: int | None,
        context: PreparedContext | None,
        start: int,
        stop: int,
    ) -> list[Row]:
        rows = template.rows(texts[start:stop], instruction=instruction, max_length=limit, first=start)
        return rows if context is None else insert(rows, context.row, template)
