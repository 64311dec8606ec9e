"""The encoder: what is trained, saved, exported and served."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import ArrayLike
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from embrew import identity
from embrew.files.checksums import NAME as CHECKSUMS
from embrew.files.writing import read_unchanged
from embrew.generation import Bos, Source, generate
from embrew.model.adapters import adapter_state
from embrew.model.backbone import Backbone, MemoryInit
from embrew.model.center import NO_TEXTS
from embrew.model.context_vectors import initialize_demonstrator, prepare_context
from embrew.model.contexts import Context, PreparedContext
from embrew.model.encode_arguments import to_unit_length
from embrew.model.encoder_module import EncoderModule
from embrew.model.weights import cast_weights
from embrew.settings.base import Quantization
from embrew.settings.encoder import EncoderSettings
from embrew.stock import check_as_stock, load_dense, stock_reading
from embrew.storage.base_model import adapter_of, known_name, open_base, pick_device, pick_dtype
from embrew.storage.loading import SETTINGS, final_stage, knows_base, load_encoder, open_base_again
from embrew.storage.parts import check_folder, check_name
from embrew.storage.peft_folder import apply_adapter
from embrew.storage.saving import save_encoder
from embrew.text.texts import check_integer

logger = logging.getLogger(__name__)


class Encoder(EncoderModule):
    """A causal LM, or a BERT-type encoder, as a text encoder, with the interface of Sentence-Transformers 6.

    Embedding, attributes and settings: see `EncoderModule`.
    """

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        adapter: str | Path | None = None,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | torch.device | None = None,
        attn_implementation: str | None = None,
        memory_tokens: int = 0,
        memory_init: MemoryInit | Mapping[str, str] = "vocab",
        soft_prompt_tokens: int = 0,
        trust_remote_code: bool = False,
        seed: int = 42,
        merge_adapter: bool | Literal["auto"] = "auto",
        quantization: str | Mapping[str, Any] | Quantization | None = None,
        settings: EncoderSettings | None = None,
        **changes: Any,
    ) -> Encoder:
        """Open a saved encoder, or put an encoder around a causal LM or a BERT-type model.

        Args:
            name: a folder that embrew saved; or `nano`, `smollm2-135m`, or a folder, GGUF file or Hub id of a causal LM
                or BERT-type encoder; or a LoRA that peft saved, on the base that it names; or a Sentence-Transformers
                model, which keeps its pooling, prompts, limit and layers, and is compared with that library.
            adapter: a folder or Hub id of a LoRA that peft saved, to merge into the LM first.
            revision: Hub revision of the LM.
            dtype: `float32`, `bfloat16`, `auto` (a saved encoder's own; else float32 on a CPU, bfloat16 on a GPU), or
                `as_trained` (of a saved encoder that was trained in bfloat16: that, where the device computes in it).
            device: defaults to the first GPU, else the CPU.
            attn_implementation: the LM's attention kernel: `sdpa`, `eager`, … ; None: the library's choice.
            memory_tokens: how many learned tokens to add (an LM only).
            memory_init: how they start: `vocab`, `noise`, `mean`; or `{"words": TEXT}`, as the tokens of a text, where
                names of special tokens are these tokens.
            soft_prompt_tokens: how many learned tokens a soft prompt has (an LM only).
            trust_remote_code: run code that comes with the LM, also with that of a saved encoder; off unless asked for.
            seed: of the memory tokens' draw.
            merge_adapter: add a saved encoder's adapter to its weights, which is faster: `auto` where the encoder can
                still be saved with it, and rounding to the weights' dtype takes at most a tenth of what it changes.
                False: keep it apart, to train it further or to switch it off. True: always, as a finished part of the
                weights. 4-bit weights stay as they are, with the adapter beside them in float32.
            quantization: keep the linear layers in 4 bits: `nf4`, `fp4`, or a mapping with `type` and `double_quant`
                (`Quantization`); needs the extra `qlora`. A saved encoder says itself how its base is quantised.
            settings: how texts are read (`EncoderSettings`); not for a saved encoder, which has its own.
            **changes: single settings, such as `pooling="mean"`; they override those in `settings`. Without any, a
                causal LM is read at its last token, a BERT-type encoder by its mean. With a template, attention or
                pooling, a Sentence-Transformers model is read in that way instead of its own.

        Raises:
            FileNotFoundError: no such model.
            ValueError: it cannot be opened; settings that do not go together; a Sentence-Transformers model with other
                modules, or that gives other vectors there.
        """
        folder = final_stage(Path(name))
        device = pick_device(device)
        if os.path.lexists(folder / SETTINGS):
            settled = {
                "settings": settings,
                "memory_tokens": memory_tokens,
                "soft_prompt_tokens": soft_prompt_tokens,
                "quantization": quantization,
                "adapter": adapter,
            }
            refused = ", ".join([*sorted(changes), *(key for key, value in settled.items() if value)])
            if refused:
                raise ValueError(f"{name} is a saved encoder, which has its settings already; leave out {refused}")
            load = partial(
                load_encoder,
                cls,
                folder,
                dtype=dtype,
                device=device,
                attn_implementation=attn_implementation,
                merge_adapter=merge_adapter,
                trust_remote_code=trust_remote_code,
            )
            return read_unchanged(folder, SETTINGS, load)  # again, if it is replaced meanwhile
        if (folder / CHECKSUMS).is_file():
            check_folder(folder)  # an encoder without embrew.json is damaged, not a language model
        in_4_bits = None if quantization is None else Quantization.parse(quantization)
        if adapter is None and adapter_of(str(name)) is not None:
            adapter = name
        weights_dtype = pick_dtype(dtype, device)
        stock = stock_reading(str(name), settings, changes, weights_dtype)
        if stock is not None and revision is not None and not folder.exists():
            raise ValueError(f"{name} is a Sentence-Transformers model; download revision {revision}, give its folder")
        settings = stock.settings if stock is not None and settings is None else settings
        merge_dtype = torch.float32 if adapter is not None and in_4_bits is None else weights_dtype
        model, tokenizer, base = open_base(
            str(name),
            revision=revision,
            dtype=merge_dtype,
            device=device,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
            quantization=in_4_bits,
        )
        backbone = Backbone(model)
        merged_adapters = [] if adapter is None else [apply_adapter(backbone, str(adapter))]
        if merge_dtype != weights_dtype:
            cast_weights(backbone.causal_lm, weights_dtype)
        backbone.to(device)
        initial_rows = _initial_rows(memory_init, tokenizer)
        if memory_tokens:
            backbone.add_memory(memory_tokens, initial_rows, seed=seed)
        if soft_prompt_tokens:
            backbone.add_soft_prompt(soft_prompt_tokens, initial_rows, seed=seed)
        if backbone.is_bert_type and settings is None:
            longest = int(min(backbone.max_positions, 512))
            settings = EncoderSettings.create(attention="bidirectional", pooling="mean", max_length=longest)
        encoder = cls(backbone, tokenizer, base, settings, **changes).eval()
        if encoder.center is not None:
            raise ValueError(f"pooling.center: {NO_TEXTS}")
        if encoder.pooling.dense is not None:
            load_dense(str(name), stock, encoder)
        if stock is not None and in_4_bits is None:
            check_as_stock(str(name), stock, encoder)
        encoder.merged_adapters = merged_adapters
        encoder.trust_remote_code = trust_remote_code
        if base.kind == "folder":
            encoder.base_folder = Path(known_name(str(name))).absolute()  # it is read again when the encoder is saved
        initialize_demonstrator(encoder, seed=seed)
        return encoder

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        verify: str = "fast",
        recipe: str | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """Write the encoder and verify what was written.

        Args:
            folder: where to; must not exist, unless `overwrite`.
            overwrite: replace an existing encoder folder.
            verify: `fast` re-opens tokenizer, settings and tensors and compares them, and the whole folder where the
                weights under the adapter are not the base's, or may not be; `full` loads it in a fresh process; `off`.
            recipe: the resolved recipe as YAML, saved in the folder.
            extra: further text files for the folder, by name.

        Raises:
            FileExistsError: the folder exists.
            RuntimeError: what was written does not give the same vectors; the folder is removed.
        """
        texts = dict(extra or {})
        if recipe or self.recipe:
            texts["recipe.yaml"] = recipe or self.recipe or ""
        save_encoder(self, Path(folder), overwrite=overwrite, verify=verify, texts=texts)

    def add_context(self, name: str, context: Context) -> PreparedContext:
        """Embed the demonstrations of a context, and keep it under a name that `encode` takes as `prompt_name`.

        Its vectors are computed with the current weights: add it again after further training, or save the
        encoder, which computes them again.

        Raises:
            ValueError: the name is that of a prompt; or see `model.contexts.prepare`.
        """
        if name in self.prompts:
            raise ValueError(f"context {name!r}: a prompt has this name already; choose another")
        check_name(name)
        self.contexts[name] = replace(prepare_context(self, context), model_hash=identity.vectors_hash(self))
        return self.contexts[name]

    def keep_frozen_lm(self) -> None:
        """Keep the original LM available, for objectives that compare with it; see `Backbone.keep_frozen_lm`.

        It is opened again and compared with the weights inside; where these differ, it stays as a second copy.
        """
        if self.backbone.frozen_copy is None:
            self.backbone.check_decoder("this objective")
            self.backbone.keep_frozen_lm(open_base_again(self) if knows_base(self) else None)
            if self.backbone.frozen_copy is not None:
                logger.info("a second copy of the original %s is in memory", self.base.name)

    def merge_adapter(self) -> None:
        """Add the adapter to the weights; if these are the base's, keep it in `merged_adapters` too.

        Saving writes those adapters, and opening merges them again. A stage then trains a new adapter; one that was
        merged when the encoder was opened is not continued either.
        """
        self.merged_to_encode = False
        if isinstance(self.backbone.model, PeftModel):
            if not self.backbone.owns_weights:
                self.merged_adapters.append(adapter_state(self.backbone.model))
            self.backbone.merge_adapter()

    def generate(
        self,
        texts: str | Sequence[str],
        *,
        source: Source = "memory",
        bos: Bos = "visible",
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 16,
        show_progress_bar: bool = False,
        **options: Any,
    ) -> str | list[str]:
        """Return what the model writes after each text, as queries are read; greedily, unless `options` say otherwise.

        Args:
            texts: a text or a list of texts.
            source: `memory`: from the memory tokens alone (LBR's bottleneck); `text`: from all that was read.
            bos: with `memory`, whether what is written may read BOS too; as in training.
            prompt_name: name of a stored prompt that fills `{instruction}`; without it, that of queries.
            prompt: the prompt itself; wins over `prompt_name`.
            batch_size: texts per batch.
            show_progress_bar: show one.
            **options: those of `generate` in transformers: `max_new_tokens` (128), `do_sample`, `temperature`, `top_p`,
                `num_beams`, … With `num_return_sequences`, each text has that many consecutive answers.

        Raises:
            ValueError: no causal LM, not under causal attention, no bottleneck for `source="memory"`, an option that
                would undo it, or a text beyond a sliding window.
        """
        if self.training:
            self.eval()
        read, single = self.texts_of(texts)
        instruction = self.instruction("query" if prompt_name is prompt is None else prompt_name, prompt)
        options |= {"source": source, "bos": bos, "batch_size": batch_size, "show_progress_bar": show_progress_bar}
        written = generate(self, read, instruction=instruction, max_tokens=self.max_length["query"], **options)
        return written[0] if single and len(written) == 1 else written

    def describe(self) -> dict[str, Any]:
        """Return base, settings, dtype and size, for result files."""
        return identity.describe(self)

    def weights_hash(self) -> str:
        """Return sha256 of what decides the vectors: base, settings, memory tokens, adapters, trained weights."""
        return identity.weights_hash(self)

    @property
    def similarity_fn_name(self) -> str:
        """Always `cosine`."""
        return "cosine"

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        if str(getattr(name, "value", name)) != "cosine":
            raise ValueError(f"similarity_fn_name={name!r}; an encoder's vectors are compared by cosine")

    def similarity(self, a: ArrayLike, b: ArrayLike) -> Tensor:
        """Return cosine of every pair, float32 `(len(a), len(b))`."""
        return to_unit_length(a) @ to_unit_length(b).T

    def similarity_pairwise(self, a: ArrayLike, b: ArrayLike) -> Tensor:
        """Return cosine of a[i] and b[i], float32 `(len(a),)`."""
        return (to_unit_length(a) * to_unit_length(b)).sum(-1)

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Within this context, embeddings keep that many leading dimensions where a call does not say otherwise."""
        before = self.truncate_dim
        self.truncate_dim = check_integer("truncate_dim", truncate_dim, maximum=self.pooled_dimensions)
        try:
            yield
        finally:
            self.truncate_dim = before

    @property
    def model_card_data(self) -> identity.CardData:
        """Where evaluators put their metrics."""
        return identity.CardData(self, self.__dict__.setdefault("_evaluation_metrics", {}))

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb notes about the model: its name, the hash of what decides its vectors, and cosine."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        about = {"name": f"embrew/{Path(self.base.name).name}", "revision": self.weights_hash()}
        return ModelMeta.create_empty(overwrites={**about, "similarity_fn_name": ScoringFunction.COSINE})


def _initial_rows(
    memory_init: MemoryInit | Mapping[str, str], tokenizer: PreTrainedTokenizerBase
) -> MemoryInit | list[int]:
    """Return how learned tokens start, with a text as its token ids."""
    if not isinstance(memory_init, Mapping):
        return memory_init
    if list(memory_init) != ["words"] or not isinstance(memory_init["words"], str):
        raise ValueError(f'memory_init={dict(memory_init)!r}; give vocab, noise, mean, or {{"words": TEXT}}')
    return list(tokenizer(memory_init["words"], add_special_tokens=False).input_ids)
