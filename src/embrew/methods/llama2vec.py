"""Llama2Vec's pretext task: predict the words of a text, and of the text that follows, from embeddings."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from embrew.data.documents import split_sentences
from embrew.encoder import Encoder
from embrew.losses.vocabulary import bag_of_words_nll, token_nll
from embrew.methods.base import Batch, DataRow, NotNegative, TokenObjective, blocks_of, text_ids, usable
from embrew.model.frozen import trained_head
from embrew.model.layers import check_takes_branches
from embrew.settings.encoder import EncoderSettings
from embrew.text.template import split_where_truncated
from embrew.text.tokens import Row, Segment, Tokens, select_masked

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(kw_only=True)
class Llama2Vec(TokenObjective):
    """EBAE and EBAR in one forward pass, and the next-token loss on the text.

    "Making Large Language Models A Better Foundation For Dense Retrieval" (arXiv 2312.15503), section 3. A text is
    split between sentences. The first part is read, followed by two blocks that do not attend to each other, each at
    the positions directly after the text: the encoder's `document` prompt with memory tokens, which predicts the words
    of this part (embedding-based auto-encoding), and its `query` prompt with memory tokens, which predicts those of the
    second part (embedding-based auto-regression). Both blocks use the same memory tokens and differ in the prompt.
    Encoding a text uses one of the two blocks.

    Attributes:
        bag_weight: weight of the mean of the two bag-of-words losses (the authors: 0.1).
        language_weight: weight of the next-token loss on the text (the authors: 1).
        stop_words: words left out of both bags: `english` is scikit-learn's list.
    """

    learning = "embedding-based auto-encoding"
    bag_weight: NotNegative = 0.1
    language_weight: NotNegative = 1.0
    stop_words: Literal["english", "none"] = "english"

    def check_settings(self) -> None:
        """Raise if all weights are 0."""
        if not self.bag_weight + self.language_weight:
            raise ValueError("bag_weight=0 and language_weight=0 train nothing; give one of them a weight")

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise unless attention is causal and memory tokens follow the text and a prompt, of which there are two."""
        prompts = settings.prompts["document"], settings.prompts["query"]
        if not memory_tokens or "{instruction}" not in settings.patterns[0].after or not all(prompts):
            raise ValueError(
                f"template={settings.template!r} with prompts {settings.prompts}: llama2vec reads memory tokens "
                "after a prompt that follows the text; give a template such as '\"{text}{instruction}{memory}' and "
                "encoder.prompts for query (what follows) and document (what it says)"
            )
        if settings.words_after != "separate":
            raise ValueError(
                "words_after=joined: llama2vec continues a text in two ways, so its tokens cannot depend on what "
                "follows; leave encoder.words_after out, or set it to separate"
            )
        if settings.attention != "causal":
            raise ValueError(
                f"attention={settings.attention}: the next-token loss on the text needs encoder.attention: causal"
            )

    def setup(self, encoder: Encoder) -> None:
        """Train the head; raise unless the encoder is a causal LM that reads both blocks."""
        super().setup(encoder)
        encoder.template.check_all_memory("llama2vec")
        check_takes_branches(encoder.backbone.inner)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts with a single sentence.

        Raises:
            ValueError: no text has two sentences.
        """
        texts = chain.from_iterable(blocks_of(dataset, "text"))
        keep = [i for i, text in enumerate(texts) if len(split_sentences(text)) > 1]
        none = f"none of {len(dataset)} texts has two sentences, one to read and one that follows"
        return usable(dataset, keep, otherwise=none)

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return texts with both blocks, and `targets` `(texts, 2, tokens)`: the bags of the two parts.

        Seed and text decide where a text is split. If the length limit truncates the first part, its bag holds the
        words that are read, and the second part begins directly after them.
        """
        read_texts, rests = [], []
        for row in rows:
            sentences = split_sentences(row["text"])
            site = random.Random(f"{seed} {row['text']}").randint(1, max(len(sentences) - 1, 1))
            read_texts.append(" ".join(sentences[:site]))
            rests.append(" ".join(sentences[site:]))
        first, second = self._blocks(encoder)
        limit = encoder.max_length["document"] - max(0, len(second.ids) - len(first.ids))
        prompt = encoder.prompts["document"]
        trunks = encoder.template.rows(read_texts, instruction=prompt, max_length=limit)
        halves = split_where_truncated(encoder.template, read_texts, trunks, instruction=prompt)
        tokens = Tokens.pad([trunk + second for trunk in trunks])
        branches = torch.zeros_like(tokens.input_ids)
        for i, trunk in enumerate(trunks):
            end = len(trunk.ids)
            branches[i, end - len(first.ids) : end] = 1
            branches[i, end : end + len(second.ids)] = 2
        bags = []
        for (read, cut_off), after in zip(halves, rests, strict=True):
            bags += [self._bag(read, encoder), self._bag(f"{cut_off} {after}", encoder)]
        width = max(1, *(len(bag) for bag in bags))
        targets = torch.tensor([bag + [-1] * (width - len(bag)) for bag in bags])
        filled = [sum(map(bool, bags[block::2])) for block in range(2)]
        text = replace(tokens, branch_ids=branches)
        return {"text": text, "targets": targets.view(len(rows), 2, width), "filled": filled}

    @staticmethod
    def _blocks(encoder: Encoder) -> tuple[Row, Row]:
        """Return the two blocks after a text: for the text itself, and for the text that follows."""
        document, query = (encoder.template.suffix(encoder.prompts[name]).ids for name in ("document", "query"))
        return _labelled(document, encoder), _labelled(query, encoder)

    def _bag(self, text: str, encoder: Encoder) -> list[int]:
        """Return the distinct token ids of the words of a text."""
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        words = re.sub(r"[\W_]+", " ", text).split()
        if self.stop_words == "english":
            words = [word for word in words if word.lower() not in ENGLISH_STOP_WORDS]
        (ids,) = text_ids([" ".join(words)], encoder)
        return sorted(set(ids))

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return the number of text tokens, and of texts with a non-empty bag of each kind."""
        language = int(batch["text"].host.predicting(Segment.TEXT).sum())
        return {"language": language, "self": batch["filled"][0], "next": batch["filled"][1]}

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted sum, and its parts `language`, `self` and `next`."""
        tokens: Tokens = batch["text"]
        states = encoder.hidden_states(tokens)
        head = trained_head(encoder.backbone.causal_lm)
        scored = tokens.host.predicting(Segment.TEXT)
        labels = select_masked(tokens.input_ids[:, 1:], scored[:, :-1])
        weights = self.item_weights(batch, states.device)
        language = token_nll(select_masked(states, scored), labels, *head, row_weights=weights["language"])
        slots = select_masked(states, tokens.host.where(Segment.MEMORY)).view(len(tokens), 2, -1, states.shape[-1])
        bags = []
        for block, name in enumerate(("self", "next")):
            targets = batch["targets"][:, block]
            text_weights = (targets >= 0).any(1) * weights[name]
            bags.append(bag_of_words_nll(slots[:, block], targets, *head, row_weights=text_weights))
        loss = self.language_weight * language + self.bag_weight * (bags[0] + bags[1]) / 2
        parts = {"language": language, "self": bags[0], "next": bags[1]}
        return {"loss": loss, **{name: value.detach() for name, value in parts.items()}}


def _labelled(ids: list[int], encoder: Encoder) -> Row:
    memory = set(encoder.template.memory_ids)
    return Row(ids, [int(Segment.MEMORY if i in memory else Segment.PROMPT) for i in ids])
