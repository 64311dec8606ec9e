"""Attributes and methods that Sentence-Transformers' evaluators and utilities, and mteb, use besides `encode`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from embrew.embedder import Embedder
from embrew.text.numbers import whole


@dataclass(frozen=True)
class CardData:
    """What Sentence-Transformers reads from and writes to a model's card.

    Attributes:
        encoder: whose.
        eval_results_dict: metrics by the evaluator that computed them, in this process; they are in no saved card.
    """

    encoder: Embedder
    eval_results_dict: dict[Any, dict[str, Any]]

    @property
    def base_model(self) -> str:
        """The base's name and the encoder's hash: `mine_hard_negatives` keeps vectors in files by this name."""
        return f"{self.encoder.base.name}@{self.encoder.weights_hash()}"

    def set_evaluation_metrics(self, evaluator: Any, metrics: Mapping[str, Any], epoch: int = 0, step: int = 0) -> None:
        """Keep what an evaluator computed; it calls this itself."""
        self.eval_results_dict[evaluator] = dict(metrics)


class Protocols(Embedder):
    """Members for code written for a `SentenceTransformer`, or for mteb."""

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
        return _unit(a) @ _unit(b).T

    def similarity_pairwise(self, a: Any, b: Any) -> Tensor:
        """Return cosine of a[i] and b[i], float32 `(len(a),)`."""
        return (_unit(a) * _unit(b)).sum(-1)

    def get_sentence_embedding_dimension(self) -> int:
        """`get_embedding_dimension` by the name that Sentence-Transformers had before version 5.4."""
        return self.get_embedding_dimension()

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Within this context, embeddings keep that many leading dimensions where a call does not say otherwise."""
        before = self.truncate_dim
        self.truncate_dim = whole("truncate_dim", truncate_dim, most=self.width)
        try:
            yield
        finally:
            self.truncate_dim = before

    @property
    def model_card_data(self) -> CardData:
        """Where evaluators put their metrics."""
        return CardData(self, self.__dict__.setdefault("_evaluation_metrics", {}))

    def start_multi_process_pool(self, *_: Any, **__: Any) -> NoReturn:
        """Raise: not offered."""
        raise ValueError(
            "a pool of processes is not offered; run one process per device, or embrew encode --engine ray"
        )

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb notes about the model: its name, the hash of what decides its vectors, and cosine."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        about = {"name": f"embrew/{Path(self.base.name).name}", "revision": self.weights_hash()}
        return ModelMeta.create_empty(overwrites={**about, "similarity_fn_name": ScoringFunction.COSINE})


def _unit(vectors: Any) -> Tensor:
    """Return unit vectors, float32 `(vectors, dimensions)`, of an array, a tensor, one vector, or a list of vectors."""
    if isinstance(vectors, list | tuple) and vectors and isinstance(vectors[0], Tensor):
        vectors = torch.stack(list(vectors))
    found = torch.as_tensor(vectors).float()
    return nn.functional.normalize(found[None] if found.ndim == 1 else found, dim=-1)
