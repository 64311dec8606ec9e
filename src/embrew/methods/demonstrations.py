"""Demonstrations before the queries of a batch, drawn from its other rows: as text, or as vectors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from embrew.distributed import GlobalRows, gather, gather_lists, global_rows, world_size
from embrew.encoder import Encoder
from embrew.methods.base import Batch, DataRow, instructions_of
from embrew.methods.embedding import Embed, Inputs, Pairs, text_keys
from embrew.model.context_vectors import demonstration_settings, max_samples, sampled_vectors
from embrew.model.contexts import Example, InstructionIds, concatenate, demonstration_rows, insert, instruction_ids
from embrew.settings.encoder import Demonstrations
from embrew.text.tokens import Row, Segment, Tokens, upload

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True, kw_only=True)
class DemonstrationRows:
    """What is needed of the rows of a batch to use them as demonstrations of each other.

    Attributes:
        seed: seed of the draw.
        keys: `(rows, 5)` int64, on the CPU: of each row the keys of its query and of its positive, the number of its
            data set, and the numbers of vectors of its query and of its passage.
        leads: instruction of each row, as part of a demonstration.
        query_ids: token ids of each row's query, if queries are text.
        passage_ids: token ids of each row's passage, if passages are text.
        instruction_of: index of the instruction of each row, if these are vectors.
    """

    seed: int
    keys: Tensor
    leads: Sequence[InstructionIds]
    query_ids: Sequence[Sequence[int]] | None = None
    passage_ids: Sequence[Sequence[int]] | None = None
    instruction_of: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The demonstrations of the queries of a batch.

    Attributes:
        rows: `(queries, maximum)` int64: their rows in the global batch; −1 after a query's last.
        position: position of the rows of this process in the global batch.
        prompted: queries after their demonstrations, of those that have some, if these contain vectors; if no query has
            any and weights are sharded, a dummy row.
        prompted_rows: `(prompted,)` int64: indices of these queries.
        has_any: whether a query has any.
    """

    rows: Tensor
    position: GlobalRows
    has_any: bool
    prompted: Tokens | None = None
    prompted_rows: Tensor | None = None


class VectorTable(NamedTuple):
    """The order of the vectors in prompts: queries, then passages, then instructions.

    Of queries, and of passages: the embeddings of all rows of the global batch, then the first sampled state of each,
    and so on. Learned vectors: those of the first demonstration's query and passage, then of the second's.

    Attributes:
        settings: form of demonstrations in the encoder's prompts.
        per_row: number of vectors in the table for each query, and for each passage.
        total: number of rows in the global batch.
    """

    settings: Demonstrations
    per_row: int
    total: int

    def example(self, row: int, number: int, slots: Sequence[int]) -> dict[str, list[int]]:
        """Return the indices of the vectors of a row, as demonstration `number` of a query.

        Args:
            row: index in the global batch.
            number: index of the demonstration in the prompt, from 0.
            slots: number of vectors of the row's query, and of its passage.
        """
        if self.settings.learnable is not None:
            return {"query_vectors": [2 * number], "passage_vectors": [2 * number + 1]}
        indices: dict[str, list[int]] = {}
        begin = 0
        for part, count in zip(("query", "passage"), slots, strict=True):
            if part in self.settings.vectors:
                indices[f"{part}_vectors"] = [begin + sample * self.total + row for sample in [*range(1, count), 0]]
                begin += self.per_row * self.total
        return indices

    def instruction(self, number: int) -> int:
        """Return the index of the vector of an instruction."""
        sides = sum(part != "instruction" for part in self.settings.vectors)
        return sides * self.per_row * self.total + number


def embed_with_samples(encoder: Encoder, tokens: Tokens) -> Tensor:
    """Return embeddings `(rows, hidden)`; with sampled states, `(1 + samples, rows, hidden)`."""
    return sampled_vectors(encoder, tokens) if demonstration_settings(encoder).every else encoder(tokens)


@dataclass(frozen=True, kw_only=True)
class DemonstratedPairs(Inputs):
    """Pairs whose queries follow demonstrations that are drawn from the global batch.

    Each query gets k demonstrations, k drawn uniformly from 0 to `maximum`: query and positive of other rows of the
    global batch and of the same data set, without replacement; fewer if there are fewer. A row with the text of the
    query, or of its positive, on either side is never drawn. The draw depends on the seed, on the progress of the
    stage, and on the texts, not on the order of the batch, processes or workers. Passages and negatives have no
    demonstrations.

    `encoder.demonstrations` defines their form in the prompt. If all of it is text, the tokens of `query` include it.
    If it contains vectors, `query` is the plain query, and the role `prompted` holds the queries after their
    demonstrations, whose vectors are the plain embeddings of this batch, projected.

    Attributes:
        pairs: inputs without demonstrations.
        maximum: largest number of demonstrations per query.
        shared: draw from the rows of all processes.
        detach: no gradient through these vectors to the texts that they embed.
    """

    rows_kind = "pairs"
    roles = ("query", "document", "instruction")
    embed: Embed = embed_with_samples
    pairs: Pairs
    maximum: int
    shared: bool
    detach: bool = False

    def prepare(self, dataset: Dataset) -> Dataset:
        """Add the column `data_set`: a number of the data set, from which a query's demonstrations are drawn."""
        dataset = self.pairs.prepare(dataset)
        first = dataset[0]
        described = f"{len(dataset)} {first['query']} {first['positive']} {first.get('instruction')}"
        return dataset.add_column("data_set", [int(text_keys([described]))] * len(dataset))

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int) -> Batch:
        """Return the pairs, `demonstrations`, their content, and `instruction` if instructions are vectors."""
        batch = self.pairs.collate(rows, encoder, seed=seed)
        settings, template = demonstration_settings(encoder), encoder.template
        instructions = instructions_of(rows, encoder)
        slots = torch.ones(len(rows), 2, dtype=torch.long)
        ids: dict[str, Sequence[Sequence[int]]] = {}
        indices: Sequence[int] = ()
        for side, (part, column) in enumerate((("query", "query"), ("passage", "positive"))):
            form = settings.form(part)  # type: ignore[arg-type]
            if form == "text":
                texts = [row[column] for row in rows]
                ids[part] = template.text_ids(texts, limit=settings.text_tokens, after=side > 0)
            elif form == "vector":
                tokens = batch["document" if side else "query"]
                lengths = tokens.where(Segment.TEXT).sum(1)[: len(rows)].tolist()
                slots[:, side] = torch.tensor([settings.slots(length) for length in lengths])
        if settings.form("instruction") == "vector":
            unique = sorted(set(instructions))
            limit = encoder.max_length["query"]
            batch["instruction"] = Tokens.pad(template.rows([""] * len(unique), instruction=unique, max_length=limit))
            indices = [unique.index(instruction) for instruction in instructions]
        data_sets = torch.tensor([row.get("data_set") or 0 for row in rows])
        demonstrations = DemonstrationRows(
            seed=seed,
            keys=torch.stack([batch["query_keys"], batch["document_keys"][: len(rows)], data_sets, *slots.T], 1),
            leads=[instruction_ids(template, instruction) for instruction in instructions],
            query_ids=ids.get("query"),
            passage_ids=ids.get("passage"),
            instruction_of=indices,
        )
        return {**batch, "demonstrations": demonstrations}

    def complete(self, encoder: Encoder, batch: Batch) -> Batch:
        """Draw demonstrations: add `drawn`, and put them before `query` if they are text."""
        settings, template = demonstration_settings(encoder), encoder.template
        plain, device = rows_of(batch["query"]), batch["query_keys"].device
        content: DemonstrationRows = batch["demonstrations"]
        position = global_rows(len(plain), device) if self.shared else GlobalRows(0, len(plain))
        table = VectorTable(settings, 1 + max_samples(encoder), position.total)
        examples = self._draw(table, position.offset, batch)
        prompts: list[Row] = []
        rows = torch.full((len(plain), max(self.maximum, 1)), -1)
        for i, row in enumerate(plain):
            head = content.leads[i]
            if content.instruction_of:
                head = head._replace(vectors=[table.instruction(content.instruction_of[i])])
            parts = demonstration_rows(settings, template, head, list(examples[i].values()))
            in_budget = list(examples[i])[: len(parts)]
            rows[i, : len(in_budget)] = torch.tensor(in_budget, dtype=torch.long)
            prompts += insert([row], concatenate(parts), template)
        prompted_rows = (rows[:, 0] >= 0).nonzero()[:, 0]
        dummy = encoder.cost.synchronized and not len(prompted_rows)  # other processes may have prompts
        drawn = Drawn(rows=upload(rows, device), position=position, has_any=len(prompted_rows) > 0)
        if not settings.vectors:
            return {**batch, "query": Tokens.pad(prompts).to(device), "drawn": drawn}
        prompted = plain[:1] if dummy else [prompts[i] for i in prompted_rows.tolist()]
        tokens = Tokens.pad(prompted) if prompted else Tokens(*torch.zeros(2, 0, 1).long())
        drawn = replace(drawn, prompted=tokens.to(device), prompted_rows=upload(prompted_rows, device))
        return {**batch, "drawn": drawn}

    def _draw(self, table: VectorTable, begin: int, batch: Batch) -> list[dict[int, Example]]:
        """Return the demonstrations of every query of this process, by row of the global batch.

        The rows of this process start at `begin`.
        """
        content: DemonstrationRows = batch["demonstrations"]
        size, device = len(batch["query_keys"]), batch["query_keys"].device
        keys = content.keys
        if self.shared and world_size() > 1:
            keys = gather(keys.to(device)).cpu()
        queries, positives, data_sets, *slots = keys.numpy().T
        texts = {
            part: gather_lists(ids, device) if self.shared else ids
            for part, ids in (("query", content.query_ids), ("passage", content.passage_ids))
            if ids is not None
        }
        order = np.lexsort((positives, queries))  # independent of the order of the batch
        draws = []
        for i in range(begin, begin + size):
            pair = np.array([queries[i], positives[i]])
            free = (data_sets == data_sets[i]) & ~np.isin(queries, pair) & ~np.isin(positives, pair)
            draw = random.Random(f"{content.seed} {float(batch.get('progress', 0.0))} {pair[0]} {pair[1]}")
            count = draw.randint(0, self.maximum)
            candidates = [int(j) for j in order[free[order]]]
            examples: dict[int, Example] = {}
            for number, j in enumerate(draw.sample(candidates, min(count, len(candidates)))):
                ids = {part: rows[j] for part, rows in texts.items()}
                examples[j] = Example(**ids, **table.example(j, number, [int(side[j]) for side in slots]))
            draws.append(examples)
        return draws

    def prompted(self, batch: Batch) -> dict[str, Tokens]:
        """Return `prompted`: queries after their demonstrations."""
        tokens = batch["drawn"].prompted
        return {} if tokens is None else {"prompted": tokens}

    def prompt_vectors(self, encoder: Encoder, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        """Return the projected vectors of the global batch, of queries, passages, instructions; or the learned ones."""
        demonstrator = encoder.demonstrator
        assert demonstrator is not None
        if demonstrator.learned is not None:
            return demonstrator()
        size = len(batch["query_keys"])
        roles = {"query": "query", "passage": "document", "instruction": "instruction"}
        raw = []
        for part in demonstrator.settings.vectors:
            vectors = embeddings[roles[part]]
            vectors = vectors if vectors.ndim == 3 else vectors[None]
            if part == "instruction":
                raw.append(vectors[0])
            else:
                rows = vectors[:, :size].transpose(0, 1).contiguous()
                raw.append((gather(rows) if self.shared else rows).transpose(0, 1).flatten(0, 1))
        table = torch.cat(raw)
        projected: Tensor = demonstrator(table.detach() if self.detach else table)
        return projected


def rows_of(tokens: Tokens) -> list[Row]:
    """Return the rows of a padded batch."""
    ids, segments = tokens.host.input_ids.tolist(), tokens.host.segment_ids.tolist()
    return [Row(ids[i][:length], segments[i][:length]) for i, length in enumerate(tokens.lengths)]


def of_demonstrations(batch: Batch, *, everywhere: bool) -> Tensor:
    """Return the candidates that are texts of a query's demonstrations or their negatives: `(queries, columns)` bool.

    With `everywhere`, the candidates are those of all processes.
    """
    drawn: Drawn = batch["drawn"]
    query_indices, size = batch["query_indices"] + drawn.position.offset, len(drawn.rows)
    if everywhere:
        query_indices = torch.cat([gather(query_indices[:size]), gather(query_indices[size:])])
    return (query_indices[None, :, None] == drawn.rows[:, None, :]).any(-1)
