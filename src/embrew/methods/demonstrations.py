"""Pairs with demonstrations of the task before each query: the draw, the prompts, and their vectors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from embrew.distributed import GlobalRows, gather, gather_lists, global_rows, world_size
from embrew.encoder import Encoder
from embrew.methods.demonstration_batch import Drawn, RowsToShow, VectorTable
from embrew.methods.inputs import Embed, Inputs, Pairs
from embrew.methods.rows import RowsKind, instructions_of, text_keys
from embrew.model.contexts import Example, check_reads, insert, joined, lead, sampled, shown
from embrew.settings.encoder import Demonstrations
from embrew.text.tokens import Row, Segment, Tokens, upload


def embed_with_samples(encoder: Encoder, tokens: Tokens) -> Tensor:
    """Return embeddings `(rows, hidden)`; with sampled states, `(1 + most, rows, hidden)`."""
    return sampled(encoder, tokens) if check_reads(encoder).every else encoder(tokens)


@dataclass(frozen=True, kw_only=True)
class DemonstratedPairs(Inputs):
    """Pairs whose queries follow demonstrations that are drawn from the global batch.

    Each query gets k demonstrations, k drawn uniformly from 0 to `most`: query and positive of other rows of the global
    batch and of the same data set, without replacement; fewer if there are fewer. A row with the text of the query, or
    of its positive, on either side is never drawn. The draw depends on the seed, on the progress of the stage, and on
    the texts, not on the order of the batch, processes or workers. Passages and negatives have no demonstrations.

    `encoder.demonstrations` defines their form in the prompt. If all of it is text, the tokens of `query` include it.
    If it contains vectors, `query` is the plain query, and the role `prompted` holds the queries after their
    demonstrations, whose vectors are the plain embeddings of this batch, projected.

    Attributes:
        pairs: inputs without demonstrations.
        most: largest number of demonstrations per query.
        shared: draw from the rows of all processes.
        vectors: whether demonstrations may be vectors.
        detach: no gradient through these vectors to the texts that they embed.
    """

    embed: Embed = embed_with_samples
    pairs: Pairs
    most: int
    shared: bool
    vectors: bool = False
    detach: bool = False

    @property
    def rows_kind(self) -> RowsKind:
        """Pairs."""
        return self.pairs.rows_kind

    @property
    def has_prompt_vectors(self) -> bool:
        """Whether demonstrations may be vectors."""
        return self.vectors

    def check_settings(self, settings: Demonstrations | None) -> Demonstrations:
        """Return how the encoder reads demonstrations; raise if in another form than the objective trains.

        With `vectors`, a prompt of instructions only (EPIC, Table 4a) may be text.
        """
        if settings is None:
            raise ValueError(
                "queries are trained with demonstrations, and the encoder reads none; set encoder.demonstrations"
            )
        if not self.vectors and settings.compress != "none":
            raise ValueError(
                f"encoder.demonstrations.compress={settings.compress} puts vectors into prompts, which objective type: "
                "epic trains; or set compress: none"
            )
        if self.vectors and settings.compress == "none" and settings.format != "instruction":
            raise ValueError(
                "encoder.demonstrations.compress=none makes them plain text, which objective type: icl trains; "
                "choose what becomes a vector: pair, all, query or passage"
            )
        return settings

    def setup(self, encoder: Encoder) -> None:
        """Raise where a query with its demonstrations may have more tokens than the model has positions."""
        settings = check_reads(encoder)
        if self.most:
            budget, query = settings.budget, encoder.max_length["query"]
            encoder.backbone.check_longest(
                query + (float("inf") if budget is None else budget),
                f"max_length.query={query} and encoder.demonstrations.budget={budget} come to rows of "
                + ("any length" if budget is None else f"up to {query + budget} tokens"),
                "set encoder.demonstrations.budget, or max_length.query, so that both together fit",
            )

    def prepare(self, dataset: Dataset) -> Dataset:
        """Add the column `data_set`: a number of the data set, from which a query's demonstrations are drawn."""
        dataset = self.pairs.prepare(dataset)
        first = dataset[0]
        described = f"{len(dataset)} {first['query']} {first['positive']} {first.get('instruction')}"
        return dataset.add_column("data_set", [int(text_keys([described]))] * len(dataset))

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Return the pairs, and `to_show`: the content of demonstrations."""
        batch = self.pairs.collate(rows, encoder, seed=seed)
        settings, template = check_reads(encoder), encoder.template
        instructions = instructions_of(rows, encoder)
        slots = torch.ones(len(rows), 2, dtype=torch.long)
        more: dict[str, Any] = {}
        for side, (part, column) in enumerate((("query", "query"), ("passage", "positive"))):
            form = settings.form(part)  # type: ignore[arg-type]
            if form == "text":
                texts = [row[column] for row in rows]
                more[f"{part}_ids"] = template.text_ids(texts, limit=settings.text_tokens, after=side > 0)
            elif form == "vector":
                tokens = batch["document" if side else "query"]
                lengths = tokens.where(Segment.TEXT).sum(1)[: len(rows)].tolist()
                slots[:, side] = torch.tensor([settings.slots(length) for length in lengths])
        if settings.form("instruction") == "vector":
            unique = sorted(set(instructions))
            limit = encoder.max_length["query"]
            more["instructions"] = Tokens.pad(template.rows([""] * len(unique), instruction=unique, max_length=limit))
            more["instruction_of"] = [unique.index(one) for one in instructions]
        data_sets = torch.tensor([row.get("data_set") or 0 for row in rows])
        to_show = RowsToShow(
            seed=seed,
            facts=torch.stack([batch["query_keys"], batch["document_keys"][: len(rows)], data_sets, *slots.T], 1),
            leads=[lead(template, instruction) for instruction in instructions],
            **more,
        )
        return {**batch, "to_show": to_show}

    def complete(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Any]:
        """Draw demonstrations: add `drawn`, and put them before `query` if they are text."""
        settings, template = check_reads(encoder), encoder.template
        plain, device = rows_of(batch["query"]), batch["query_keys"].device
        to_show: RowsToShow = batch["to_show"]
        here = global_rows(len(plain), device) if self.shared else GlobalRows(0, len(plain))
        table = VectorTable.of(encoder, here.total)
        examples = self._draw(table, here.offset, batch)
        prompts: list[Row] = []
        rows = torch.full((len(plain), max(self.most, 1)), -1)
        for i, row in enumerate(plain):
            head = to_show.leads[i]
            if to_show.instruction_of:
                head = head._replace(vectors=[table.instruction(to_show.instruction_of[i])])
            parts = shown(settings, template, head, list(examples[i].values()))
            kept = list(examples[i])[: len(parts)]
            rows[i, : len(kept)] = torch.tensor(kept, dtype=torch.long)
            prompts += insert([row], joined(parts), template)
        some = (rows[:, 0] >= 0).nonzero()[:, 0]
        dummy = encoder.cost.alike and not len(some)  # other processes may have prompts
        drawn = Drawn(rows=upload(rows, device), here=here, some=len(some) > 0)
        if not settings.vectors:
            return {**batch, "query": Tokens.pad(prompts).to(device), "drawn": drawn}
        prompted = plain[:1] if dummy else [prompts[i] for i in some.tolist()]
        tokens = Tokens.pad(prompted) if prompted else Tokens(*torch.zeros(2, 0, 1).long())
        drawn = replace(drawn, prompted=tokens.to(device), prompted_rows=upload(some, device))
        return {**batch, "drawn": drawn}

    def _draw(self, table: VectorTable, begin: int, batch: dict[str, Any]) -> list[dict[int, Example]]:
        """Return the demonstrations of every query of this process, by row of the global batch.

        The rows of this process start at `begin`.
        """
        to_show: RowsToShow = batch["to_show"]
        size, device = len(batch["query_keys"]), batch["query_keys"].device
        facts = to_show.facts
        if self.shared and world_size() > 1:
            facts = gather(facts.to(device)).cpu()
        queries, positives, sources, *slots = facts.numpy().T
        texts = {
            part: gather_lists(ids, device) if self.shared else ids
            for part, ids in (("query", to_show.query_ids), ("passage", to_show.passage_ids))
            if ids is not None
        }
        order = np.lexsort((positives, queries))  # independent of the order of the batch
        found = []
        for i in range(begin, begin + size):
            here = np.array([queries[i], positives[i]])
            free = (sources == sources[i]) & ~np.isin(queries, here) & ~np.isin(positives, here)
            draw = random.Random(f"{to_show.seed} {float(batch.get('progress', 0.0))} {here[0]} {here[1]}")
            count = draw.randint(0, self.most)
            left = [int(j) for j in order[free[order]]]
            examples: dict[int, Example] = {}
            for number, j in enumerate(draw.sample(left, min(count, len(left)))):
                ids = {part: of[j] for part, of in texts.items()}
                examples[j] = Example(**ids, **table.example(j, number, [int(side[j]) for side in slots]))
            found.append(examples)
        return found

    def everywhere(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes in rank order, if these are shared."""
        return gather(rows) if self.shared else rows

    def texts(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """Return `query` and `document`; and `instruction`, if instructions are vectors."""
        instructions = batch["to_show"].instructions
        return self.pairs.texts(batch) | ({} if instructions is None else {"instruction": instructions})

    def prompted(self, batch: dict[str, Any]) -> dict[str, Tokens]:
        """Return `prompted`: queries after their demonstrations."""
        tokens = batch["drawn"].prompted
        return {} if tokens is None else {"prompted": tokens}

    def prompt_vectors(self, encoder: Encoder, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> Tensor:
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
                every = self.everywhere(vectors[:, :size].transpose(0, 1).contiguous())
                raw.append(every.transpose(0, 1).flatten(0, 1))
        table = torch.cat(raw)
        made: Tensor = demonstrator(table.detach() if self.detach else table)
        return made


def rows_of(tokens: Tokens) -> list[Row]:
    """Return the rows of a padded batch."""
    ids, segments = tokens.host.input_ids.tolist(), tokens.host.segment_ids.tolist()
    return [Row(ids[i][:length], segments[i][:length]) for i, length in enumerate(tokens.lengths)]
