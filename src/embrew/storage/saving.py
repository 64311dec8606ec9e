"""Write an encoder's folder and verify it, all or nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from peft import PeftModel
from safetensors.torch import save_file

from embrew.files.checksums import write_checksums
from embrew.files.formats import ENCODER, versions
from embrew.files.names import check_file_name
from embrew.files.writing import atomic_folder
from embrew.identity import replayed
from embrew.model.adapters import LIBRARY, AdapterState, adapter_state
from embrew.model.weights import without_adapter
from embrew.storage.base_model import keep_base, quiet
from embrew.storage.card import model_card
from embrew.storage.opening import LEARNED, PARTS, RECORD, SETTINGS, difference_to_base, trained_parts
from embrew.storage.parts import BASE, check_tokenizer, up_to_date, write_adapter, write_context, write_tokenizer
from embrew.storage.verification import verify_folder

if TYPE_CHECKING:
    from embrew.encoder import Encoder

logger = logging.getLogger(__name__)
CARD = "README.md"
PACKAGES = ("embrew", "torch", "transformers", "peft", "tokenizers")


def save_encoder(encoder: Encoder, folder: Path, *, overwrite: bool, verify: str, texts: Mapping[str, str]) -> None:
    """Write an encoder's folder and verify it; see `Encoder.save_pretrained`."""
    if verify not in ("fast", "full", "off"):
        raise ValueError(f"verify={verify!r}; choose from fast, full, off")
    if encoder.num_layers is not None:
        raise ValueError(
            f"this encoder was truncated to {encoder.num_layers} layers; an encoder's folder names a complete base; "
            "export it, or save the full encoder and give num_layers to encode"
        )
    if not encoder.backbone.owns_weights and (difference := difference_to_base(encoder)) is not None:
        logger.warning(
            "the weights under the adapter are not those of %s with %d merged adapters: %s; they are saved whole",
            encoder.base.name,
            len(encoder.chain),
            difference,
        )
        encoder.backbone.owns_weights, encoder.chain = True, []
    with atomic_folder(folder, marker=SETTINGS, overwrite=overwrite) as out:
        states = replayed(encoder)
        model = encoder.backbone.model
        active = isinstance(model, PeftModel) or (encoder.merged_to_encode and len(states) > 0)
        if isinstance(model, PeftModel):
            states.append(adapter_state(model))
        for i, state in enumerate(states):
            config = {**state.config, "base_model_name_or_path": encoder.base.name, "revision": encoder.base.revision}
            write_adapter(AdapterState(config, state.tensors), out / "adapters" / str(i))
        if encoder.backbone.learned:
            learned = {name: rows.detach().cpu().contiguous() for name, rows in encoder.backbone.learned.items()}
            save_file(learned, out / LEARNED)
        for part, tensors in trained_parts(encoder).items():
            save_file(tensors, out / PARTS[part])
        if encoder.backbone.owns_weights:
            with quiet():
                without_adapter(encoder.backbone.causal_lm).save_pretrained(out / "weights")
        elif encoder.base.kind == "folder":
            keep_base(encoder.base, encoder.base_folder, out / BASE, code=encoder.trust_remote_code)
        write_tokenizer(encoder.tokenizer, out)
        check_tokenizer(encoder.tokenizer, out)
        settings = {
            "format": ENCODER.number,
            "base": encoder.base.as_dict(),
            "adapters": len(states),
            "active_adapter": active,
            "full_weights": encoder.backbone.owns_weights,
            "steps": encoder.steps,
            "arithmetic": encoder.arithmetic,
            "dtype": str(encoder.backbone.dtype).removeprefix("torch."),
            **encoder.settings.as_dict(),
            "versions": versions([*PACKAGES, *([LIBRARY] if encoder.backbone.is_quantized else [])]),
        }
        encoder.contexts = up_to_date(encoder)
        for name, context in encoder.contexts.items():
            write_context(out, name, context)
        if encoder.record is not None:
            (out / RECORD).write_text(json.dumps(encoder.record, indent=2, ensure_ascii=False))
        (out / CARD).write_text(model_card(encoder), encoding="utf-8")
        for name, text in texts.items():
            (out / check_file_name(name, what="extra")).write_text(text)
        (out / SETTINGS).write_text(json.dumps(settings, indent=2, sort_keys=True))
        write_checksums(out)  # a reader that verification starts compares them
        settings["checks"] = verify_folder(encoder, out, verify) if verify != "off" else {"verify": "off"}
        (out / SETTINGS).write_text(json.dumps(settings, indent=2, sort_keys=True))
        write_checksums(out)
