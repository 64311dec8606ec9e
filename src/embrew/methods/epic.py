"""Contrastive learning with demonstrations before each query, drawn from the batch: text, or vectors (EPIC)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from embrew.distributed import GlobalRows, gather, gather_lists, global_rows, world_size
from embrew.encoder import Encoder
from embrew.methods.base import CountOrNone, NotNegative, instructions_of
from embrew.methods.embedding import Candidates, Embed, Inputs, Pairs, text_keys
from embrew.methods.info_nce import Contrastive
from embrew.model.context_vectors import demonstration_settings, max_samples, sampled_vectors
from embrew.model.contexts import Example, InstructionIds, concatenate, demonstration_rows, insert, instruction_ids
from embrew.settings.encoder import Demonstrations, EncoderSettings
from embrew.text.tokens import Row, Segment, Tokens, upload

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True, kw_only=True)
class RowsToShow:
    """What is needed of the rows of a batch to use them as demonstrations of each other.

    Attributes:
        seed: seed of the draw.
        facts: `(rows, 5)` int64, on the CPU: of each row the keys of its query and of its positive, the number of its
            data set, and the numbers of vectors of its query and of its passage.
        leads: its instruction as part of a demonstration.
        query_ids: token ids of its query, if queries are text.
        passage_ids: token ids of its passage, if passages are text.
        instruction_of: index of the instruction of each row, if these are vectors.
    """

    seed: int
    facts: Tensor
    leads: Sequence[InstructionIds]
    query_ids: Sequence[Sequence[int]] | None = None
    passage_ids: Sequence[Sequence[int]] | None = None
    instruction_of: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The demonstrations of the queries of a batch.

    Attributes:
        rows: `(queries, most)` int64: their rows in the global batch; −1 after a query's last.
        here: position of the rows of this process in the global batch.
        prompted: queries after their demonstrations, of those that have some, if these contain vectors; if no query has
            any and weights are sharded, a dummy row.
        prompted_rows: `(prompted,)` int64: indices of these queries.
        some: whether a query has any.
    """

    rows: Tensor
    here: GlobalRows
    some: bool
    prompted: Tokens | None = None
    prompted_rows: Tensor | None = None


class VectorTable(NamedTuple):
    """The order of the vectors in prompts: queries, then passages, then instructions.

    Of queries, and of passages: the embeddings of all rows of the global batch, then the first sampled state of each,
    and so on. Learned vectors: those of the first demonstration's query and passage, then of the second's.

    Attributes:
        settings: how the encoder reads demonstrations.
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
    """Return embeddings `(rows, hidden)`; with sampled states, `(1 + most, rows, hidden)`."""
    return sampled_vectors(encoder, tokens) if demonstration_settings(encoder).every else encoder(tokens)


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
        detach: no gradient through these vectors to the texts that they embed.
    """

    rows_kind = "pairs"
    roles = ("query", "document", "instruction")
    embed: Embed = embed_with_samples
    pairs: Pairs
    most: int
    shared: bool
    detach: bool = False

    def prepare(self, dataset: Dataset) -> Dataset:
        """Add the column `data_set`: a number of the data set, from which a query's demonstrations are drawn."""
        dataset = self.pairs.prepare(dataset)
        first = dataset[0]
        described = f"{len(dataset)} {first['query']} {first['positive']} {first.get('instruction')}"
        return dataset.add_column("data_set", [int(text_keys([described]))] * len(dataset))

    def collate(self, rows: Sequence[dict[str, Any]], encoder: Encoder, *, seed: int) -> dict[str, Any]:
        """Return the pairs, `to_show`, the content of demonstrations, and `instruction` if instructions are vectors."""
        batch = self.pairs.collate(rows, encoder, seed=seed)
        settings, template = demonstration_settings(encoder), encoder.template
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
            batch["instruction"] = Tokens.pad(template.rows([""] * len(unique), instruction=unique, max_length=limit))
            more["instruction_of"] = [unique.index(one) for one in instructions]
        data_sets = torch.tensor([row.get("data_set") or 0 for row in rows])
        to_show = RowsToShow(
            seed=seed,
            facts=torch.stack([batch["query_keys"], batch["document_keys"][: len(rows)], data_sets, *slots.T], 1),
            leads=[instruction_ids(template, instruction) for instruction in instructions],
            **more,
        )
        return {**batch, "to_show": to_show}

    def complete(self, encoder: Encoder, batch: dict[str, Any]) -> dict[str, Any]:
        """Draw demonstrations: add `drawn`, and put them before `query` if they are text."""
        settings, template = demonstration_settings(encoder), encoder.template
        plain, device = rows_of(batch["query"]), batch["query_keys"].device
        to_show: RowsToShow = batch["to_show"]
        here = global_rows(len(plain), device) if self.shared else GlobalRows(0, len(plain))
        table = VectorTable(settings, 1 + max_samples(encoder), here.total)
        examples = self._draw(table, here.offset, batch)
        prompts: list[Row] = []
        rows = torch.full((len(plain), max(self.most, 1)), -1)
        for i, row in enumerate(plain):
            head = to_show.leads[i]
            if to_show.instruction_of:
                head = head._replace(vectors=[table.instruction(to_show.instruction_of[i])])
            parts = demonstration_rows(settings, template, head, list(examples[i].values()))
            used = list(examples[i])[: len(parts)]
            rows[i, : len(used)] = torch.tensor(used, dtype=torch.long)
            prompts += insert([row], concatenate(parts), template)
        some = (rows[:, 0] >= 0).nonzero()[:, 0]
        dummy = encoder.cost.synchronized and not len(some)  # other processes may have prompts
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
        draws = []
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
            draws.append(examples)
        return draws

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
                own = vectors[:, :size].transpose(0, 1).contiguous()
                raw.append((gather(own) if self.shared else own).transpose(0, 1).flatten(0, 1))
        table = torch.cat(raw)
        projected: Tensor = demonstrator(table.detach() if self.detach else table)
        return projected


def rows_of(tokens: Tokens) -> list[Row]:
    """Return the rows of a padded batch."""
    ids, segments = tokens.host.input_ids.tolist(), tokens.host.segment_ids.tolist()
    return [Row(ids[i][:length], segments[i][:length]) for i, length in enumerate(tokens.lengths)]


@dataclass(kw_only=True)
class InContext(Contrastive):
    """InfoNCE whose queries follow textual demonstrations, bge-en-icl (arXiv 2409.15700), section 3.

    `DemonstratedPairs` describes how demonstrations are drawn. `demo_similarity` is the mean cosine of queries and the
    passages of their own demonstrations, `other_similarity` that of queries and their other negatives. If the first is
    far below the second, the model has learned that passages in the prompt are not the answer.

    Attributes:
        demonstrations: largest number of demonstrations per query.
        mask_demo_negatives: leave positives and negatives of a query's demonstrations out of its softmax.
    """

    demonstrations: CountOrNone = 5
    mask_demo_negatives: bool = False

    def check_settings(self) -> None:
        """Raise unless positives come from the data, and candidates are documents."""
        super().check_settings()
        if self.positives != "column":
            raise ValueError(f"positives={self.positives}: demonstrations are pairs, so give positives: column")
        if self.candidates != "documents":
            raise ValueError("candidates=both goes with contrastive; demonstrations need candidates: documents")

    @property
    def inputs(self) -> DemonstratedPairs:
        """Pairs with demonstrations as text."""
        return DemonstratedPairs(pairs=self.pairs, most=self.demonstrations, shared=self.gather)

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless the encoder reads demonstrations in the form that is trained: text, or vectors.

        With vectors, a prompt of instructions only (EPIC, Table 4a) may be text.
        """
        read, vectors = settings.demonstrations, self.inputs.vectors
        if read is None:
            raise ValueError(
                "queries are trained with demonstrations, and the encoder reads none; set encoder.demonstrations"
            )
        if not vectors and read.compress != "none":
            raise ValueError(
                f"encoder.demonstrations.compress={read.compress} puts vectors into prompts, which objective type: "
                "epic trains; or set compress: none"
            )
        if vectors and read.compress == "none" and read.format != "instruction":
            raise ValueError(
                "encoder.demonstrations.compress=none makes them plain text, which objective type: icl trains; "
                "choose what becomes a vector: pair, all, query or passage"
            )

    def setup(self, encoder: Encoder) -> None:
        """Raise where a query with its demonstrations may have more tokens than the model has positions."""
        super().setup(encoder)
        budget, query = demonstration_settings(encoder).budget, encoder.max_length["query"]
        if self.demonstrations:
            encoder.backbone.check_longest(
                query + (float("inf") if budget is None else budget),
                f"max_length.query={query} and encoder.demonstrations.budget={budget} come to rows of "
                + ("any length" if budget is None else f"up to {query + budget} tokens"),
                "set encoder.demonstrations.budget, or max_length.query, so that both together fit",
            )

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return InfoNCE of the queries after their demonstrations."""
        return self.compare_demonstrated(embeddings["query"], embeddings["document"], batch)

    def compare_demonstrated(self, queries: Tensor, documents: Tensor, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return `compare` of queries after demonstrations, and their similarity to these demonstrations."""
        candidates = self.columns(queries, documents, batch)
        shown = of_demonstrations(batch, everywhere=self.gather and self.in_batch_negatives)
        excluded = shown if self.mask_demo_negatives else None
        parts = self.compare(queries, documents, batch, candidates=candidates, excluded=excluded)
        if not batch["drawn"].some:
            return parts
        return {**parts, **demonstration_similarities(queries, candidates, shown)}


@dataclass(kw_only=True)
class Epic(InContext):
    """EPIC ("Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders"), section 2.

    Queries and documents are embedded without demonstrations, then each query again after k demonstrations, drawn as
    `DemonstratedPairs` describes. Queries and passages of these are vectors: their plain embeddings, unnormalised,
    through the encoder's projection (Eq. 3). The loss is InfoNCE of the prompted queries (Eqs. 4–6), or of the plain
    query if k is 0.

    The paper does not say whether gradients flow through the vectors; here they do, to the plain texts, also with
    gradient caching.

    Attributes:
        demo_grad: `full`, or `detach`: no gradient through the vectors to the texts that they embed; the projection is
            trained in both cases.
        plain_weight: weight of the additional loss of all queries without demonstrations.
    """

    demo_grad: Literal["full", "detach"] = "full"
    plain_weight: NotNegative = 0.0

    @property
    def inputs(self) -> DemonstratedPairs:
        """Pairs with demonstrations as vectors."""
        detach = self.demo_grad == "detach"
        return DemonstratedPairs(
            pairs=self.pairs, most=self.demonstrations, shared=self.gather, vectors=True, detach=detach
        )

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless the encoder reads demonstrations as vectors, and learns enough of them."""
        super().check_encoder(settings, memory_tokens)
        read = settings.demonstrations
        assert read is not None
        if read.learnable is not None and self.demonstrations > read.learnable:
            raise ValueError(
                f"demonstrations={self.demonstrations}, and encoder.demonstrations.learnable={read.learnable} "
                "vectors replace them; give the same number"
            )
        if self.plain_weight and not read.vectors:
            raise ValueError("plain_weight goes with demonstrations that are vectors; these are text")

    def setup(self, encoder: Encoder) -> None:
        """Make the projection trainable."""
        super().setup(encoder)
        assert encoder.demonstrator is not None
        encoder.demonstrator.requires_grad_(True)

    def loss(self, embeddings: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return InfoNCE of the prompted queries; `plain` is that of all queries without demonstrations."""
        single = {role: vectors[0] if vectors.ndim == 3 else vectors for role, vectors in embeddings.items()}
        plain, documents = single["query"], single["document"]
        queries = plain
        if "prompted" in single:
            rows = batch["drawn"].prompted_rows
            queries = plain.index_copy(0, rows, single["prompted"][: len(rows)].to(plain.dtype))
        parts = self.compare_demonstrated(queries, documents, batch)
        if not self.plain_weight:
            return parts
        value = self.compare(plain, documents, batch)["loss"]
        return {**parts, "loss": parts["loss"] + self.plain_weight * value, "plain": value.detach()}


def of_demonstrations(batch: dict[str, Any], *, everywhere: bool) -> Tensor:
    """Return the candidates that are texts of a query's demonstrations or their negatives: `(queries, columns)` bool.

    With `everywhere`, the candidates are those of all processes.
    """
    drawn: Drawn = batch["drawn"]
    owners, size = batch["owners"] + drawn.here.offset, len(drawn.rows)
    if everywhere:
        owners = torch.cat([gather(owners[:size]), gather(owners[size:])])
    return (owners[None, :, None] == drawn.rows[:, None, :]).any(-1)


@torch.no_grad()
def demonstration_similarities(queries: Tensor, candidates: Candidates, shown: Tensor) -> dict[str, Tensor]:
    """Return `demo_similarity` and `other_similarity` of `InContext`; `shown` as `of_demonstrations` returns it.

    NaN is the mean of no cosines, as where the passages of all demonstrations are those of other processes.
    """
    cosines = normalize(queries.float(), dim=-1) @ normalize(candidates.vectors.float(), dim=-1).T
    columns = torch.arange(shown.shape[1], device=shown.device)
    passages = shown & (columns < candidates.positives)
    others = shown.any(-1, keepdim=True) & ~shown & (columns != candidates.labels[:, None])
    sides = {"demo_similarity": passages, "other_similarity": others}
    return {name: (cosines * chosen).sum() / chosen.sum() for name, chosen in sides.items()}
