"""Contrastive learning with demonstrations of the task before each query, drawn from the batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import normalize, pad

from embrew.distributed import gather, most_over_processes, rank, sum_over_processes, world_size
from embrew.modeling.encoder import Encoder
from embrew.modeling.prompting.contexts import Example, Lead, check_reads, insert, joined, lead, shown
from embrew.modeling.prompting.vectors import most_samples
from embrew.modeling.settings.demonstrations import Demonstrations
from embrew.modeling.text.tokens import Row, Segment, Tokens
from embrew.objectives.contrastive import Contrastive, text_keys
from embrew.objectives.settings import CountOrNone


class Drawn(NamedTuple):
    """The demonstrations of one query.

    Attributes:
        rows: their places in the joint batch.
        examples: what of each stands in the prompt.
    """

    rows: list[int]
    examples: list[Example]


@dataclass(kw_only=True)
class InContext(Contrastive):
    """InfoNCE whose queries stand behind textual demonstrations, bge-en-icl (arXiv 2409.15700), section 3.

    Each query gets k demonstrations, k drawn evenly from 0 to `demonstrations`: query and positive of other rows of the
    joint batch and of the same data set, without replacement; fewer where fewer are left. Never a row with the text of
    the query, or of its positive, on either side. What is drawn depends on the seed, on how far the stage is, and on
    the texts: not on places in the batch, processes or workers. Passages and negatives have no demonstrations.

    The encoder says by `encoder.demonstrations` how they stand in the prompt. `demo_similarity` is the mean cosine of
    queries to the passages of their own demonstrations, `other_similarity` that to their other negatives: where the
    first is far below the second, the model has learned that what stands in a prompt is not the answer.

    Attributes:
        demonstrations: the most that a query gets.
        mask_demo_negatives: leave positives and negatives of a query's demonstrations out of its softmax.
    """

    demonstrations: CountOrNone = 5
    mask_demo_negatives: bool = False

    def check_settings(self) -> None:
        """Demonstrations are pairs."""
        super().check_settings()
        if self.positives != "column":
            raise ValueError(f"positives={self.positives}: demonstrations are pairs, so give positives: column")

    def setup(self, encoder: Encoder) -> None:
        """Check that the encoder reads demonstrations, as text."""
        self.check(check_reads(encoder))
        super().setup(encoder)
        if self.demonstrations:
            budget, query = check_reads(encoder).budget, encoder.max_length["query"]
            encoder.backbone.check_longest(
                query + (float("inf") if budget is None else budget),
                f"max_length.query={query} and encoder.demonstrations.budget={budget} come to rows of "
                + ("any length" if budget is None else f"up to {query + budget} tokens"),
                "set encoder.demonstrations.budget, or max_length.query, so that both together fit",
            )

    def check(self, settings: Demonstrations) -> None:
        """Raise where the encoder reads demonstrations in another way than this objective trains."""
        if settings.compress != "none":
            raise ValueError(
                f"encoder.demonstrations.compress={settings.compress} puts vectors into prompts, which objective type: "
                "epic trains; or set compress: none"
            )

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Add the column `data_set`, a number for it, which demonstrations have in common."""
        dataset = super().prepare(dataset, encoder)
        first = dataset[0]
        told = f"{len(dataset)} {first['query']} {first['positive']} {first.get('instruction')}"
        return dataset.add_column("data_set", [int(text_keys([told]))] * len(dataset))

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        """Pairs as `Contrastive` collates them, and what prompts are made of."""
        batch = super().collate(rows, encoder, seed=seed)
        settings, template = check_reads(encoder), encoder.template
        told = [row.get("instruction") for row in rows]
        instructions = [encoder.prompts["query"] if one is None else one for one in told]
        leads = [lead(template, instruction) for instruction in instructions]
        counts = [len(row.get("negatives") or []) for row in rows]
        own = torch.arange(len(rows))
        batch |= {
            "seed": torch.tensor(seed),
            "sources": torch.tensor([row.get("data_set") or 0 for row in rows]),
            "owners": torch.cat([own, own.repeat_interleave(torch.tensor(counts))]),
            "before": filled_up([one.before for one in leads]),
            "after": filled_up([one.after for one in leads]),
            "slots": torch.ones(len(rows), 2, dtype=torch.long),
        }
        for side, (part, column) in enumerate((("query", "query"), ("passage", "positive"))):
            form = settings.form(part)  # type: ignore[arg-type]
            if form == "text":
                texts = [row[column] for row in rows]
                ids = template.text_ids(texts, limit=settings.text_tokens, after=side > 0)
                batch[f"{part}_words"] = filled_up(ids)
            elif form == "vector":
                tokens = batch["document" if side else "query"]
                lengths = tokens.where(Segment.TEXT).sum(1)[: len(rows)].tolist()
                batch["slots"][:, side] = torch.tensor([settings.slots(length) for length in lengths])
        if settings.form("instruction") == "vector":
            unique = sorted(set(instructions))
            limit = encoder.max_length["query"]
            batch["instruction"] = Tokens.pad(template.rows([""] * len(unique), instruction=unique, max_length=limit))
            batch["instruction_of"] = torch.tensor([unique.index(one) for one in instructions])
        return batch

    def arranged(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Any]:
        """Draw, and put the demonstrations before the queries.

        Adds `demonstrations`, `(batch, most)`: their places in the joint batch, −1 beyond a query's own. Where they are
        text, `query` has them in it. Where vectors are among them, `prompted` is the queries that have some, and
        `prompted_rows` says which these are.
        """
        settings, template = check_reads(encoder), encoder.template
        device = batch["query_keys"].device
        drawn = self._drawn(encoder, settings, batch)
        plain = rows_of(batch["query"])
        before, after = without_filling(batch["before"]), without_filling(batch["after"])
        told = batch["instruction_of"].tolist() if "instruction_of" in batch else None
        first = most_places(encoder, settings, self._total(len(plain), device))
        prompted: list[Row] = []
        for i, row in enumerate(plain):
            vectors = [] if told is None else [first + told[i]]
            parts = shown(settings, template, Lead(before[i], after[i], vectors), drawn[i].examples)
            del drawn[i].rows[len(parts) :]
            prompted += insert([row], joined(parts), template)
        places = torch.full((len(plain), max(self.demonstrations, 1)), -1)
        for i, (rows, _) in enumerate(drawn):
            places[i, : len(rows)] = torch.tensor(rows, dtype=torch.long)
        batch = {**batch, "demonstrations": places.to(device)}
        if not settings.vectors:
            return {**batch, "query": Tokens.pad(prompted).to(device)}
        with_some = [i for i, (rows, _) in enumerate(drawn) if rows]
        some = Tokens.pad([prompted[i] for i in with_some]) if with_some else Tokens(*torch.zeros(2, 0, 1).long())
        return {**batch, "prompted": some.to(device), "prompted_rows": torch.tensor(with_some, device=device).long()}

    def _drawn(self, encoder: Encoder, settings: Demonstrations, batch: dict[str, Any]) -> list[Drawn]:
        """The demonstrations of every query of this process."""
        size = len(batch["query_keys"])
        own = [batch["query_keys"], batch["document_keys"][:size], batch["sources"], *batch["slots"].T]
        queries, positives, sources, *slots = self.everywhere(torch.stack(own, 1)).cpu().numpy().T
        words = {
            part: without_filling(self._everywhere_wide(batch[f"{part}_words"]))
            for part in ("query", "passage")
            if f"{part}_words" in batch
        }
        begin, total = self._begin(size, batch["query_keys"].device), len(queries)
        order = np.lexsort((positives, queries))  # whatever the order of the batch
        found = []
        for i in range(begin, begin + size):
            here = np.array([queries[i], positives[i]])
            free = (sources == sources[i]) & ~np.isin(queries, here) & ~np.isin(positives, here)
            draw = random.Random(f"{int(batch['seed'])} {float(batch.get('progress', 0.0))} {here[0]} {here[1]}")
            count = draw.randint(0, self.demonstrations)
            left = [int(j) for j in order[free[order]]]
            rows = draw.sample(left, min(count, len(left)))
            examples = []
            for number, j in enumerate(rows):
                text = {part: ids[j] for part, ids in words.items()}
                vectors = _places(encoder, settings, j, number, [int(side[j]) for side in slots], total)
                examples.append(Example(**text, **vectors))
            found.append(Drawn(rows, examples))
        return found

    def leave_out(
        self, queries: Tensor, candidates: Tensor, labels: Tensor, batch: dict[str, Any]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The texts of a query's demonstrations, where they are to be left out; and how similar they are to it."""
        places, size = batch["demonstrations"], len(queries)
        owners, total = batch["owners"] + self._begin(size, labels.device), size
        if self.in_batch_negatives:  # asks all processes, also those whose queries have no demonstrations
            owners = torch.cat([self.everywhere(owners[:size]), self.everywhere(owners[size:])])
            total = self._total(size, labels.device)
        shown_here = (owners[None, :, None] == places[:, None, :]).any(-1)
        with_some = shown_here.any(-1)
        noted: dict[str, Tensor] = {}
        if bool(with_some.any()):
            with torch.no_grad():
                cosines = normalize(queries[with_some].float(), dim=-1) @ normalize(candidates.float(), dim=-1).T
                passages = shown_here[with_some].clone()
                passages[:, total:] = False
                others = ~shown_here[with_some]
                others[torch.arange(len(others)), labels[with_some]] = False
                if bool(passages.any()):
                    noted["demo_similarity"] = cosines[passages].mean()
                if bool(others.any()):
                    noted["other_similarity"] = cosines[others].mean()
        return (shown_here if self.mask_demo_negatives else None), noted

    def everywhere(self, rows: Tensor) -> Tensor:
        """Rows of all processes that share their candidates, in order."""
        return gather(rows) if self.gather and world_size() > 1 else rows

    def _everywhere_wide(self, ids: Tensor) -> Tensor:
        """The same for rows filled up to a width that differs between processes."""
        if not self.gather or world_size() == 1:
            return ids
        width = most_over_processes(ids.shape[1], ids.device)
        return gather(pad(ids, (0, width - ids.shape[1]), value=-1))

    def _begin(self, size: int, device: torch.device) -> int:
        """Where this process' rows begin in the joint batch."""
        return int(self._sizes(size, device)[: rank()].sum()) if self.gather else 0

    def _total(self, size: int, device: torch.device) -> int:
        return int(self._sizes(size, device).sum()) if self.gather else size

    @staticmethod
    def _sizes(size: int, device: torch.device) -> Tensor:
        sizes = torch.zeros(world_size(), dtype=torch.long, device=device)
        sizes[rank()] = size
        return sum_over_processes(sizes)


def most_places(encoder: Encoder, settings: Demonstrations, total: int) -> int:
    """Rows of the table of vectors that queries and passages take, before those of instructions."""
    sides = sum(part != "instruction" for part in settings.vectors)
    return sides * (1 + most_samples(encoder)) * total


def _places(
    encoder: Encoder, settings: Demonstrations, row: int, number: int, slots: Sequence[int], total: int
) -> dict[str, list[int]]:
    """Where in the table of vectors those of a row of the joint batch stand, as demonstration `number` of a query.

    The table holds queries, then passages: the embeddings of all rows, then the first sampled state of each, and so on.
    """
    if settings.learnable is not None:
        return {"query_vectors": [2 * number], "passage_vectors": [2 * number + 1]}
    found: dict[str, list[int]] = {}
    begin = 0
    for part, count in zip(("query", "passage"), slots, strict=True):
        if part in settings.vectors:
            found[f"{part}_vectors"] = [begin + sample * total + row for sample in [*range(1, count), 0]]
            begin += (1 + most_samples(encoder)) * total
    return found


def rows_of(tokens: Tokens) -> list[Row]:
    """The rows of a padded batch."""
    lengths = tokens.attention_mask.sum(1).tolist()
    ids, segments = tokens.input_ids.tolist(), tokens.segment_ids.tolist()
    return [Row(ids[i][:length], segments[i][:length]) for i, length in enumerate(lengths)]


def filled_up(lists: Sequence[Sequence[int]]) -> Tensor:
    """Lists of ids as `(lists, longest)` int64, −1 beyond the end of each."""
    width = max(map(len, lists))
    return torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in lists], dtype=torch.long).view(len(lists), width)


def without_filling(ids: Tensor) -> list[list[int]]:
    """The lists that `filled_up` was given."""
    return [[i for i in row if i >= 0] for row in ids.tolist()]
