"""What Sentence-Transformers' evaluators and utilities, and mteb, ask of a model beside its `encode` methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor, nn

from embrew.modeling.text.inputs import SIDES, whole

if TYPE_CHECKING:
    from embrew.modeling.encoder import Encoder

MTEB = ("task_metadata", "hf_split", "hf_subset", "prompt_type")
"""Keywords of mteb's calls of `encode`."""


@dataclass(frozen=True)
class CardData:
    """What Sentence-Transformers reads from and writes to a model's card.

    Attributes:
        encoder: whose.
        eval_results_dict: metrics by the evaluator that computed them, in this process; they are in no saved card.
    """

    encoder: Encoder
    eval_results_dict: dict[Any, dict[str, Any]]

    @property
    def base_model(self) -> str:
        """The base's name and the encoder's hash: `mine_hard_negatives` keeps vectors in files by this name."""
        return f"{self.encoder.base.name}@{self.encoder.weights_hash()}"

    def set_evaluation_metrics(self, evaluator: Any, metrics: Mapping[str, Any], epoch: int = 0, step: int = 0) -> None:
        """Keep what an evaluator computed; it calls this itself."""
        self.eval_results_dict[evaluator] = dict(metrics)


class Protocols(nn.Module):
    """Members that `Encoder` has for code written for a `SentenceTransformer`, or for mteb."""

    truncate_dim: int | None
    max_length: dict[str, int]

    @property
    def similarity_fn_name(self) -> str:
        """Always `cosine`."""
        return "cosine"

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        if str(getattr(name, "value", name)) != "cosine":
            raise ValueError(f"similarity_fn_name={name!r}; an encoder's vectors are compared by cosine")

    def similarity(self, a: Any, b: Any) -> Tensor:
        """Cosine of every pair, float32 `(len(a), len(b))`."""
        return _unit(a) @ _unit(b).T

    def similarity_pairwise(self, a: Any, b: Any) -> Tensor:
        """Cosine of a[i] and b[i], float32 `(len(a),)`."""
        return (_unit(a) * _unit(b)).sum(-1)

    def get_sentence_embedding_dimension(self) -> int:
        """`get_embedding_dimension` by the name that Sentence-Transformers had before version 5.4."""
        encoder: Any = self
        return int(encoder.get_embedding_dimension())

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Within this context, embeddings keep that many leading dimensions where a call does not say otherwise."""
        before, encoder = self.truncate_dim, cast(Any, self)
        self.truncate_dim = whole("truncate_dim", truncate_dim, most=encoder.width)
        try:
            yield
        finally:
            self.truncate_dim = before

    @property
    def model_card_data(self) -> CardData:
        """Where evaluators put their metrics."""
        results = self.__dict__.setdefault("_evaluation_metrics", {})
        return CardData(cast("Encoder", self), results)

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

        encoder = cast("Encoder", self)
        about = {"name": f"embrew/{Path(encoder.base.name).name}", "revision": encoder.weights_hash()}
        return ModelMeta.create_empty(overwrites={**about, "similarity_fn_name": ScoringFunction.COSINE})

    def _of_mteb(
        self, inputs: Any, prompt_name: str | None, max_length: int | None, given: Mapping[str, Any]
    ) -> tuple[list[str], str | None, int | None]:
        """Texts of mteb's batches, and the prompt name and length limit of their side.

        Raises:
            TypeError: keywords that are not mteb's.
        """
        unknown = next((name for name in given if name not in MTEB), None)
        if unknown is not None:
            raise TypeError(f"encode() got an unexpected keyword argument {unknown!r}")
        side = getattr(given.get("prompt_type"), "value", given.get("prompt_type"))
        if side in SIDES:
            prompt_name = side if prompt_name is None else prompt_name
            max_length = self.max_length[side] if max_length is None else max_length
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise ValueError(f"mteb gives {', '.join(batch)} and no text; an encoder reads texts only")
            texts += batch["text"]
        return texts, prompt_name, max_length


def _unit(vectors: Any) -> Tensor:
    """Unit vectors, float32 `(vectors, dimensions)`, of an array, a tensor, one vector, or a list of vectors."""
    if isinstance(vectors, list | tuple) and vectors and isinstance(vectors[0], Tensor):
        vectors = torch.stack(list(vectors))
    found = torch.as_tensor(vectors).float()
    return nn.functional.normalize(found[None] if found.ndim == 1 else found, dim=-1)
