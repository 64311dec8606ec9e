"""The interface of training objectives, and what they share: ranges of settings, rows, and means over a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from embrew.distributed import sum_over_processes, world_size
from embrew.encoder import Encoder
from embrew.settings.encoder import EncoderSettings
from embrew.settings.validation import Fields, check_fields, fields_model
from embrew.text.tokens import Tokens

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)
Positive = Annotated[float, Field(gt=0)]
Temperature = Annotated[float, Field(ge=1e-4, le=1e4)]  # beyond, float32 has no gradient of a softmax of cosines
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
CosineMargin = Annotated[float, Field(ge=-2, le=2)]  # a difference of two cosines
Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]  # 0: none
DataRow = dict[str, Any]
"""A row of a data set, by column."""
Batch = dict[str, Any]
"""What an objective makes of rows: tokens, tensors and numbers by key. These are all keys, by who adds them.

`Inputs.collate` (losses of embeddings):

- `query`, `document`, `text`: `Tokens` of the texts of a role; documents are all positives, then all negatives.
- `ROLE_keys`: `(texts,)` int64, equal where the texts of a role are equal.
- `query_indices`: `(documents,)` int64, the query that a document belongs to.
- `candidates`, `teacher`: `(queries, 1 + most negatives)`, indices of a query's own documents, and a teacher's scores.
- `grades`: `(pairs,)` float32, scores of pairs; `graded`: indices of the texts of those whose score is not 0.
- `demonstrations` (`DemonstrationRows`), `instruction` (`Tokens`); by `Inputs.complete` also `drawn` (`Drawn`).

`collate` of single objectives:

- `EmbeddingDistillation`: `ROLE_teacher`, `(texts, width)` float32, the teacher's unit vectors.
- `Generative`, `Llama2Vec`, `MaskedNextToken`, `Alignment`: `text`, `Tokens` with what is predicted.
- `MaskedNextToken`: `labels`, `(batch, tokens)` int64, -100 where none is; `positions` of the others, flattened.
- `Llama2Vec`: `targets`, `(texts, 2, tokens)` int64, bags of token ids; `filled`, numbers of bags that are not empty.
- `Compression`: `Tokens` as `context`, which the encoder reads, `student` and `teacher`, which the frozen LM reads;
  with two targets there are two of each, with the suffixes in `targets`.
- `Alignment`: `decoded`, `Tokens` after a memory; `source`, `part`, `pair_indices`: `(decoded,)` int64, the
  row of `text` whose memory it is, the kind of the text (`_lay_out`), and the pair; `near_reference`, `far_reference`.

The trainer:

- `item_weights`: the weight of a token or row in the step, by the names of `num_items`.
- `progress`: the share of the stage's steps that is done, 0 to 1.
- `learned`: `Objective.learned` by name.
"""
RowsKind = Literal["text", "pairs", "scored"]
"""What a row holds: `text`; `pairs`: query, positive, negatives; `scored`: sentence1, sentence2, score."""
COLUMNS = {"query": "instruction", "document": "document_instruction"}
ITEM_WEIGHTS = "item_weights"  # their key in a batch
settings_of: Callable[[type], type[Fields]] = cache(fields_model)
"""The pydantic model of an objective's settings, by its class."""


@dataclass(kw_only=True)
class Objective:
    """A training method for one stage. The fields of the dataclass are its settings; it holds no weights.

    Attributes:
        trains_head: whether the language model's head is trained too, where all weights are.
        reads_original_lm: whether the loss reads the original language model; where training changes its weights, a
            second copy is kept.
        needs_negatives: whether pairs without negatives are left out.
    """

    trains_head: ClassVar[bool] = False
    reads_original_lm: ClassVar[bool] = False
    needs_negatives: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        check_fields(settings_of(type(self)), settings, message_prefix=f"{type(self).__name__}: ")
        self.check_settings()

    def check_settings(self) -> None:
        """Raise where settings do not go together."""

    @property
    def rows_kind(self) -> RowsKind:
        """The kind of rows that these settings need; a subclass may have it as a class variable."""
        return "text"

    @property
    def skips_layers(self) -> bool:
        """Whether layers above those that the loss reads are not run, so that their weights have no gradient."""
        return False

    @property
    def held_out(self) -> int:
        """The number of texts that are set aside, to measure the share of the gap closed (`methods.gap`)."""
        return 0

    @property
    def single_instruction(self) -> str | None:
        """Why the settings allow one instruction per data set only, for the error message; None: they allow several."""
        return None

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise where an encoder's settings do not fit; called with those of a recipe, before its model is opened."""

    def setup(self, encoder: Encoder) -> None:
        """Prepare the encoder for this objective before the first step; raise where it does not fit.

        Overrides call this first.
        """
        self.check_encoder(encoder.settings, len(encoder.backbone.memory_ids))

    def learned(self, encoder: Encoder) -> dict[str, nn.Parameter]:
        """Return parameters that only training needs, by name; each batch holds them as `batch["learned"]`."""
        return {}

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Return the data set without rows that the objective cannot use."""
        return dataset

    def check_rows(self, dataset: Dataset) -> None:
        """Raise where the rows of a stage, all together, give the loss nothing to learn from."""

    def precompute(self, dataset: Dataset, encoder: Encoder, folder: Path | None = None) -> Dataset:
        """Add columns that are computed once, by the encoder at the start of the stage.

        With `folder`, results that take long are written there, for a run that is resumed.
        """
        return dataset

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Convert rows to a batch, on the CPU.

        Random choices depend on `seed`, which changes with the epoch, and on the row only. Batches are prefetched, so
        the state of a global generator would be different after resuming.
        """
        raise NotImplementedError(f"{type(self).__name__} has no collate")

    def passes(self, encoder: Encoder, batch: Batch) -> tuple[list[Tokens], list[Tokens]]:
        """Return the tokens of a batch that are run with gradients, and those without; planning counts them."""
        return [part for part in batch.values() if isinstance(part, Tokens)], []

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return, by name, the numbers of tokens or rows in this batch over which parts of the loss are means.

        Such a mean is over all micro-batches of an optimiser step, of all processes. A loss that compares the rows of a
        batch with each other has no entry: the loss of a step is the mean of the losses of its micro-batches.
        """
        return {}

    def item_weights(self, batch: Batch, device: torch.device) -> Mapping[str, float]:
        """Return the factor for the loss of one token or row, by the names of `num_items`.

        The trainer puts them into the batch. Without, the step is this batch and those of the other processes.
        """
        weights: Mapping[str, float] | None = batch.get(ITEM_WEIGHTS)
        return weights_of_items([self.num_items(batch)], device) if weights is None else weights

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Tensor]:
        """Return `loss`, a scalar with gradient, and detached parts for the log."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")


@dataclass(kw_only=True)
class TokenObjective(Objective):
    """An objective that predicts tokens with the language model's head, and trains it where all weights are trained.

    Attributes:
        learning: name of the training, for messages.
    """

    trains_head = True
    learning: ClassVar[str]

    def setup(self, encoder: Encoder) -> None:
        """Train the head, without attention dropout; raise unless the encoder is a causal LM that fits."""
        encoder.backbone.check_decoder(self.learning)
        super().setup(encoder)
        encoder.backbone.set_attention_dropout(0.0)
        encoder.backbone.train_head()


def weights_of_items(counts: Sequence[Mapping[str, int]], device: torch.device) -> dict[str, float]:
    """Return, for each name, (micro-batches · processes) / (its count in all micro-batches of all processes).

    The gradient of a step is the mean over its micro-batches and over processes. A mean over all tokens of the step is
    therefore not the mean of the means of its micro-batches, which have different numbers of tokens.

    Args:
        counts: counts of this process, one entry per micro-batch of the step; all have the same names.
        device: device on which the processes exchange their counts; all processes must call this.

    Examples:
        >>> weights_of_items([{"tokens": 30}, {"tokens": 10}], torch.device("cpu"))  # (Σ over 30 + Σ over 10) / 40
        {'tokens': 0.05}
    """
    names = sorted(counts[0])
    if not names:
        return {}
    sums = torch.tensor([[count[name] for name in names] for count in counts], dtype=torch.float64).sum(0)
    totals = (sums if world_size() == 1 else sum_over_processes(sums.to(device))).tolist()
    return {name: len(counts) * world_size() / max(total, 1.0) for name, total in zip(names, totals, strict=True)}


def instructions_of(
    rows: Sequence[DataRow], encoder: Encoder, side: Literal["query", "document"] = "query"
) -> list[str]:
    """Return each row's instruction for its query or documents, by default the encoder's prompt."""
    instructions = [row.get(COLUMNS[side]) for row in rows]
    return [encoder.prompts[side] if instruction is None else instruction for instruction in instructions]


def are_equal(values: Iterable[str | float]) -> bool:
    """Return whether there is one value only; reads no further than to a second one."""
    remaining = iter(values)
    first = next(remaining, None)
    return all(value == first for value in remaining)


def usable(dataset: Dataset, rows: Sequence[int], *, otherwise: str, left_out: str | None = None) -> Dataset:
    """Return the rows that an objective can use.

    Args:
        dataset: all rows.
        rows: indices of those that it can use.
        otherwise: error message if there are none.
        left_out: log message about the other rows, for example `compression leaves out {} of {} texts`.

    Raises:
        ValueError: the objective can use none of the rows.
    """
    if not rows:
        raise ValueError(otherwise)
    if left_out is not None and len(rows) < len(dataset):
        logger.info(left_out.format(len(dataset) - len(rows), len(dataset)))
    return dataset.select(rows)


def blocks_of(dataset: Dataset, column: str) -> Iterator[list[Any]]:
    """Yield the values of a column, 1,000 at a time, so that those of a large data set are never all in memory."""
    for block in dataset.select_columns([column]).iter(batch_size=1000):
        yield block[column]


def rows_with_negatives(dataset: Dataset) -> list[int]:
    """Return the indices of the rows that have negatives."""
    return [i for i, texts in enumerate(chain.from_iterable(blocks_of(dataset, "negatives"))) if texts]


def token_counts(dataset: Dataset, column: str, encoder: Encoder) -> list[int]:
    """Return the number of tokens of each text of a column, without special tokens."""
    return [len(ids) for texts in blocks_of(dataset, column) for ids in text_ids(texts, encoder)]


def text_ids(texts: Sequence[str], encoder: Encoder) -> list[list[int]]:
    """Return token ids of texts without special tokens; the names of special tokens in a text stay text."""
    return [list(ids) for ids in tokenized(texts, encoder)["input_ids"]] if texts else []


def tokenized(texts: Sequence[str], encoder: Encoder, *, offsets: bool = False) -> Mapping[str, Any]:
    """Return `input_ids` of texts, as `text_ids`; with `offsets` also `offset_mapping`, characters of each token."""
    return encoder.tokenizer(
        list(texts),
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_offsets_mapping=offsets,
        verbose=False,
    )


def end_ids(encoder: Encoder, *, end: bool) -> list[int]:
    """Return the tokens that end a target: EOS, or none without `end`.

    Raises:
        ValueError: the tokenizer has no EOS token.
    """
    if not end:
        return []
    if encoder.tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no EOS token; set objective.end: false")
    return [encoder.tokenizer.eos_token_id]


def check_target_fits(encoder: Encoder, before: int, target: int, *, read: str = "the text that is read") -> None:
    """Raise if the longest row with a target has more tokens than the model has positions.

    Args:
        encoder: the encoder whose model reads the row.
        before: largest number of tokens before the target.
        target: largest number of tokens of the target, EOS included.
        read: name of the tokens before the target, for the message.

    Raises:
        ValueError: the row is too long; the message names the length limits and what to lower.
    """
    limits = ", ".join(f"max_length.{side}={limit}" for side, limit in encoder.max_length.items())
    encoder.backbone.check_row_length(
        before + target,
        f"{limits}: {read} (up to {before} tokens) and the target after (up to {target}) add up to {before + target}",
        "lower encoder.max_length (document limits targets), so that both fit into one row",
    )
