"""The encoder: what is trained, saved, exported and served."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel

from embrew.files import checksums
from embrew.generation import Bos, Source, generate
from embrew.model.adapter_state import adapter_state
from embrew.model.backbone import Backbone
from embrew.model.context_vectors import start
from embrew.model.contexts import Context, PreparedContext, prepare
from embrew.model.weights import MemoryInit
from embrew.protocols import Protocols
from embrew.settings.encoder import EncoderSettings
from embrew.settings.quantization import Quantization
from embrew.storage.context_files import check_name
from embrew.storage.folder_check import check_folder
from embrew.storage.loading import open_base, pick_device, pick_dtype
from embrew.storage.opening import SETTINGS, final_stage, knows_base, load_encoder, open_base_again
from embrew.storage.saving import save_encoder
from embrew.text_encoder.hashes import vectors_hash

logger = logging.getLogger(__name__)


class Encoder(Protocols):
    """A causal LM, or a BERT-type encoder, as a text encoder, with the `encode` of Sentence-Transformers 6.

    Its base classes: `Protocols` (what Sentence-Transformers and mteb call), `Embedder` (`encode`), `EmbeddingModel`
    (the parts, and the forward pass). This class opens, saves, merges and generates.
    """

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | torch.device | None = None,
        attn_implementation: str | None = None,
        memory_tokens: int = 0,
        memory_init: MemoryInit = "vocab",
        soft_prompt_tokens: int = 0,
        trust_remote_code: bool = False,
        seed: int = 42,
        merge_adapter: bool | Literal["auto"] = "auto",
        quantization: str | Mapping[str, Any] | Quantization | None = None,
        settings: EncoderSettings | None = None,
        **given: Any,
    ) -> Encoder:
        """Open a saved encoder, or put an encoder around a causal LM or a BERT-type model.

        Args:
            name: a folder written by `save_pretrained`, or by training (its last stage); or `nano`, a folder or
                Hub id of a causal LM or of a BERT-type encoder.
            revision: Hub revision of the LM.
            dtype: `float32`, `bfloat16`, `auto` (a saved encoder's own; else float32 on a CPU, bfloat16 on a GPU), or
                `as_trained` (of a saved encoder that was trained in bfloat16: that, where the device computes in it).
            device: defaults to the first GPU, else the CPU.
            attn_implementation: the LM's attention kernel, passed to the library: `sdpa`, `eager`, … (on a GPU also
                `flash_attention_2` and others, not run here); None: the library's choice.
            memory_tokens: how many learned tokens to add (an LM only).
            memory_init: how they start: `vocab`, `noise`, `mean`.
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
            **given: single settings, by the names of `EncoderSettings`; they override those in `settings`. Without
                any, a causal LM is read at its last token, a BERT-type encoder by its mean.

        Examples:
            >>> encoder = Encoder.from_pretrained("nano", pooling="mean")  # doctest: +SKIP
        """
        place = pick_device(device)
        folder = final_stage(Path(name))
        if os.path.lexists(folder / SETTINGS):
            added: dict[str, Any] = {"memory_tokens": memory_tokens, "soft_prompt_tokens": soft_prompt_tokens}
            added["quantization"] = quantization
            asked = sorted(given) + [key for key, value in {"settings": settings, **added}.items() if value]
            if asked:
                raise ValueError(
                    f"{name} is a saved encoder, which has its settings already; leave out {', '.join(asked)}"
                )
            return load_encoder(
                cls,
                folder,
                dtype=dtype,
                device=place,
                attn_implementation=attn_implementation,
                merge_adapter=merge_adapter,
                trust_remote_code=trust_remote_code,
            )
        if (folder / checksums.NAME).is_file():
            check_folder(folder)  # an encoder without embrew.json is damaged, not a language model
        model, tokenizer, base = open_base(
            str(name),
            revision=revision,
            dtype=pick_dtype(dtype, place),
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
            quantization=None if quantization is None else Quantization.of(quantization),
            device=place,
        )
        backbone = Backbone(model).to(place)
        if memory_tokens:
            backbone.add_memory(memory_tokens, memory_init, seed=seed)
        if soft_prompt_tokens:
            backbone.add_soft_prompt(soft_prompt_tokens, memory_init, seed=seed)
        if backbone.is_encoder and settings is None:
            settings = EncoderSettings.of(attention="bidirectional", pooling="mean")
        encoder = cls(backbone, tokenizer, base, settings, **given).eval()
        encoder.trust_remote_code = trust_remote_code
        if base.kind == "folder":
            encoder.base_folder = Path(name).absolute()  # it is read again when the encoder is saved
        start(encoder, seed=seed)
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
            verify: `fast` re-opens tokenizer, settings and adapter into this model, and the whole folder where the
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
        """Add the adapter to the weights; if these are the base's, keep it in `chain`, so that saving can replay it.

        A stage then trains a new adapter; one that was merged when the encoder was opened is not continued either.
        """
        self.merged_to_encode = False
        if isinstance(self.backbone.model, PeftModel):
            if not self.backbone.owns_weights:
                self.chain.append(adapter_state(self.backbone.model))
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
        given, single = self.texts_of(texts)
        written = generate(
            self,
            given,
            instruction=self.instruction("query" if prompt_name is None and prompt is None else prompt_name, prompt),
            source=source,
            bos=bos,
            max_tokens=self.max_length["query"],
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            **options,
        )
        return written[0] if single and len(written) == 1 else written

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
        self.contexts[name] = replace(prepare(self, context), model_hash=vectors_hash(self))
        return self.contexts[name]
