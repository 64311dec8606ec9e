"""Write an encoder's folder atomically; verify it, by opening it again and comparing it with the encoder in memory."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from embrew.files.checksums import CARD, write_checksums
from embrew.files.formats import ENCODER, versions
from embrew.files.names import check_file_name
from embrew.files.writing import atomic_folder
from embrew.float32 import full_float32
from embrew.identity import adapters_to_replay
from embrew.model.adapters import BITSANDBYTES, AdapterState, adapter_state
from embrew.model.backbone import Backbone
from embrew.model.context_vectors import prepare_context
from embrew.model.contexts import Context
from embrew.model.encoder_module import EncoderModule
from embrew.model.weights import describe_difference, tensors_under_adapter, without_adapter
from embrew.passport.making import make_passport, write_passport
from embrew.passport.texts import REFERENCE_TEXTS
from embrew.settings.encoder import Demonstration, EncoderSettings
from embrew.storage.base_model import keep_base, quiet
from embrew.storage.card import model_card
from embrew.storage.loading import (
    CARD_FACTS,
    PARTS,
    SETTINGS,
    difference_to_base,
    load_encoder,
    read_settings,
    trained_parts,
)
from embrew.storage.parts import (
    BASE,
    check_tokenizer,
    check_written_contexts,
    current_contexts,
    first_difference,
    open_tokenizer,
    read_adapter,
    read_tensors,
    write_adapter,
    write_context,
    write_tokenizer,
)

logger = logging.getLogger(__name__)
REOPEN = """
import sys
from embrew.encoder import Encoder
from embrew.storage.saving import write_reference_vectors
folder, out, device, *flags = sys.argv[1:]
code, merge = "--trust-remote-code" in flags, "--merge-adapter" in flags
encoder = Encoder.from_pretrained(folder, device=device, trust_remote_code=code, merge_adapter=merge)
write_reference_vectors(encoder, out)
"""
"""Program of a fresh process that opens a folder as users do, and writes its reference vectors."""
PACKAGES = ("embrew", "torch", "transformers", "peft", "tokenizers")


def save_encoder(
    encoder: EncoderModule, folder: Path, *, overwrite: bool, verify: str, texts: Mapping[str, str]
) -> None:
    """Write an encoder's folder and verify it; see `Encoder.save_pretrained`."""
    if verify not in ("fast", "full", "off"):
        raise ValueError(f"verify={verify!r}; choose from fast, full, off")
    if encoder.num_layers is not None:
        raise ValueError(
            f"this encoder was truncated to {encoder.num_layers} layers; an encoder's folder names a complete base; "
            "export it, or save the full encoder and give num_layers to encode"
        )
    if encoder.truncate_dim is not None:
        raise ValueError(
            f"this encoder was truncated to {encoder.truncate_dim} dimensions, which its folder does not hold; export "
            "it, or save it without truncate_dim, and give that to encode"
        )
    if not encoder.backbone.owns_weights and (difference := difference_to_base(encoder)) is not None:
        logger.warning(
            "the weights under the adapter are not those of %s with %d merged adapters: %s; they are saved whole",
            encoder.base.name,
            len(encoder.merged_adapters),
            difference,
        )
        encoder.backbone.owns_weights, encoder.merged_adapters = True, []
    with atomic_folder(folder, marker=SETTINGS, overwrite=overwrite) as out:
        adapters = adapters_to_replay(encoder)
        model = encoder.backbone.model
        has_active_adapter = isinstance(model, PeftModel) or (encoder.merged_to_encode and len(adapters) > 0)
        if isinstance(model, PeftModel):
            adapters.append(adapter_state(model))
        for i, state in enumerate(adapters):
            config = {**state.config, "base_model_name_or_path": encoder.base.name, "revision": encoder.base.revision}
            write_adapter(AdapterState(config, state.tensors), out / "adapters" / str(i))
        for part, tensors in trained_parts(encoder).items():
            save_file(tensors, out / PARTS[part])
        if encoder.backbone.owns_weights:
            with quiet():
                without_adapter(encoder.backbone.causal_lm).save_pretrained(out / "weights")
        elif encoder.base.kind == "folder":
            keep_base(encoder.base, encoder.base_folder, out / BASE, code=encoder.trust_remote_code)
        write_tokenizer(encoder.tokenizer, out)
        check_tokenizer(encoder.tokenizer, out)
        settings = _settings_content(encoder, adapters=len(adapters), active_adapter=has_active_adapter)
        encoder.contexts = current_contexts(encoder)
        for name, context in encoder.contexts.items():
            write_context(out, name, context)
        if encoder.card_facts is not None:
            (out / CARD_FACTS).write_text(
                json.dumps(encoder.card_facts, indent=2, ensure_ascii=False), encoding="utf-8"
            )
        (out / CARD).write_text(model_card(encoder), encoding="utf-8")
        for name, text in texts.items():
            (out / check_file_name(name, what="extra")).write_text(text, encoding="utf-8")
        (out / SETTINGS).write_text(json.dumps(settings, indent=2, sort_keys=True))
        write_checksums(out)  # compared by the reader that verification starts
        settings["checks"] = verify_folder(encoder, out, verify) if verify != "off" else {"verify": "off"}
        if verify != "off":
            write_passport(make_passport(encoder, name=encoder.base.name), out)
        (out / SETTINGS).write_text(json.dumps(settings, indent=2, sort_keys=True))
        write_checksums(out)


def _settings_content(encoder: EncoderModule, *, adapters: int, active_adapter: bool) -> dict[str, Any]:
    """Return the content of `embrew.json`, without the checks."""
    return {
        "format": ENCODER.number,
        "base": encoder.base.as_dict(),
        "adapters": adapters,
        "active_adapter": active_adapter,
        "full_weights": encoder.backbone.owns_weights,
        "steps": encoder.steps,
        "arithmetic": encoder.compute_dtype,
        "dtype": str(encoder.backbone.dtype).removeprefix("torch."),
        **encoder.settings.as_dict(),
        "versions": versions([*PACKAGES, *([BITSANDBYTES] if encoder.backbone.is_quantized else [])]),
    }


INSTRUCTION = "Find a similar text: "
REFERENCE_NAME = "<reference>"  # no name that a user can give


def tolerance(dtype: torch.dtype, layers: int = 12) -> float:
    """Return the largest difference allowed between components of two unit vectors that should be the same.

    Different kernels sum in different order, and rounding errors grow with the number of layers: with 30, vectors of
    PyTorch and of OpenVINO are up to 6e-6 and 8e-6 from those in float64, and up to 1.7e-5 from each other.
    """
    return 1e-5 * max(1.0, layers / 12) if dtype == torch.float32 else 2e-2


def check_same(vectors: Tensor, expected: Tensor, backbone: Backbone, *, what: str) -> float:
    """Return the largest difference of unit vectors that should be the same.

    Raises:
        RuntimeError: it is larger than allowed for the backbone's dtype and layers; `what` begins the message.
    """
    difference, allowed = float((vectors - expected).abs().max()), tolerance(backbone.dtype, backbone.num_layers)
    if not difference <= allowed:
        raise RuntimeError(f"{what}: largest difference {difference:.2e}, allowed {allowed:.0e} ({backbone.dtype})")
    return difference


def reference_vectors(encoder: EncoderModule) -> Tensor:
    """Return unit vectors of the reference texts, float32 `(16, dimensions)`.

    If the encoder reads demonstrations, 16 more follow, of the same texts after two demonstrations.
    """
    with full_float32(encoder.device.type):
        vectors = [encoder.encode(list(REFERENCE_TEXTS), batch_size=8, show_progress_bar=False)]
        if encoder.demonstrator is not None:
            learnable = encoder.demonstrator.settings.learnable
            pairs = (Demonstration(*REFERENCE_TEXTS[:2]), Demonstration(*REFERENCE_TEXTS[3:5]))[: learnable or 2]
            context = prepare_context(encoder, Context(_instruction(encoder), pairs))
            encoder.contexts[REFERENCE_NAME] = context  # added, since another thread may encode with the others
            try:
                vectors.append(
                    encoder.encode(list(REFERENCE_TEXTS), REFERENCE_NAME, batch_size=8, show_progress_bar=False)
                )
            finally:
                del encoder.contexts[REFERENCE_NAME]
        return torch.nn.functional.normalize(torch.cat([torch.as_tensor(part) for part in vectors]), dim=-1)


def _instruction(encoder: EncoderModule) -> str:
    """Return an instruction for the demonstrations; an empty one if it does not fit the encoder's `max_length`."""
    try:
        encoder.template.rows(list(REFERENCE_TEXTS), instruction=INSTRUCTION, max_length=encoder.max_length["query"])
    except ValueError:
        return ""
    return INSTRUCTION


def verify_folder(encoder: EncoderModule, folder: Path, verify: str) -> dict[str, Any]:
    """Compare a written folder with the encoder in memory.

    Returns:
        What was compared, and the largest difference, for `embrew.json`.

    Raises:
        RuntimeError: a check failed; says which and by how much.
    """
    _check_settings(encoder, folder)
    check_written_contexts(encoder, folder)
    _check_tensors(encoder, folder)
    checks: dict[str, Any] = {"verify": verify, "compared_with": "its tensors and those in memory, to the bit"}
    expected = reference_vectors(encoder)
    if verify == "full" or encoder.backbone.owns_weights:
        if verify == "full":
            reopened = _vectors_in_fresh_process(encoder, folder)
            checks["compared_with"] = "the folder in a fresh process"
        else:
            reopened = _vectors_reopened(encoder, folder)
            checks["compared_with"] = "the folder opened anew"
        what = "the saved folder gives other vectors than the encoder in memory"
        checks["reopened_max_difference"] = check_same(reopened, expected, encoder.backbone, what=what)
    if isinstance(encoder.backbone.model, PeftModel) and encoder.steps:
        with encoder.backbone.adapter_off():
            base_vectors = reference_vectors(encoder)
        cosine = checks["cosine_to_switched_off"] = float((base_vectors * expected).sum(-1).mean())
        if torch.equal(base_vectors, expected):
            logger.warning(
                "the adapter was trained for %d steps and changes no vector at all; it is saved as it is. Raise "
                "training.learning_rate, and look at the losses in run.json: one of 0 has no gradient",
                encoder.steps,
            )
        elif cosine > 0.9999:
            logger.warning("the adapter hardly changes the vectors: mean cosine to the switched-off model %.6f", cosine)
    return checks


def _check_settings(encoder: EncoderModule, folder: Path) -> None:
    """Raise unless the written settings are the encoder's, and the written tokenizer gives the same rows."""
    written = EncoderSettings.from_dict(read_settings(folder, verified=True))
    for key, (ours, theirs) in encoder.settings.differences(written).items():
        raise RuntimeError(f"embrew.json holds {key}={theirs!r}, the encoder has {ours!r}")
    tokenizer = open_tokenizer(folder)
    for template, reopened in zip(
        encoder.templates, encoder.make_templates(tokenizer, encoder.backbone.memory_ids), strict=True
    ):
        for name, prompt in encoder.prompts.items():
            rows, reopened_rows = (
                either.rows(REFERENCE_TEXTS, instruction=prompt, max_length=encoder.max_seq_length)
                for either in (template, reopened)
            )
            for ours, theirs in zip(rows, reopened_rows, strict=True):
                if ours != theirs:
                    same_ids = ours.ids == theirs.ids
                    difference = "segments" if same_ids else first_difference(ours.ids, theirs.ids, tokenizer)
                    raise RuntimeError(
                        f"the saved tokenizer gives other tokens than the one in memory (prompt {name!r}): {difference}"
                    )


def _check_tensors(encoder: EncoderModule, folder: Path) -> None:
    """Raise unless the written adapters, learned tokens and other trained tensors are the encoder's."""
    written = {part: read_tensors(folder / PARTS[part]) for part in trained_parts(encoder)}
    expected = dict(trained_parts(encoder))
    adapters = adapters_to_replay(encoder)
    if isinstance(encoder.backbone.model, PeftModel):
        adapters.append(adapter_state(encoder.backbone.model))
    for i, state in enumerate(adapters):
        expected[f"adapter {i}"] = state.tensors
        written[f"adapter {i}"] = read_adapter(folder / "adapters" / str(i)).tensors
    for part, tensors in expected.items():
        difference = describe_difference(tensors, written[part], exactly=True)
        if difference is not None:
            raise RuntimeError(f"{part} was written with other values than the encoder holds: {difference}")


def _vectors_reopened(encoder: EncoderModule, folder: Path) -> Tensor:
    """Open the folder in this process, compare the weights under the adapter, and return the reference vectors.

    Raises:
        RuntimeError: the weights under the adapter are not those in memory; says which.
    """
    backbone, device = encoder.backbone, encoder.device
    if device.type != "cpu":
        encoder.to("cpu")  # so that an accelerator never holds both
    try:
        opened = load_encoder(
            type(encoder),
            folder,
            dtype="auto",
            device=device,
            attn_implementation=backbone.inner.config._attn_implementation,
            merge_adapter=not isinstance(backbone.model, PeftModel),
            trust_remote_code=encoder.trust_remote_code,
        )
        vectors = reference_vectors(opened)
        reopened_tensors = tensors_under_adapter(opened.backbone.causal_lm.to("cpu"))
    finally:
        if device.type != "cpu":
            encoder.to(device)
    difference = describe_difference(tensors_under_adapter(backbone.causal_lm), reopened_tensors, exactly=True)
    if difference is not None:
        raise RuntimeError(f"weights/ was written with other values than the model holds: {difference}")
    return vectors


def _vectors_in_fresh_process(encoder: EncoderModule, folder: Path) -> Tensor:
    """Open the folder in a new Python process, on the CPU, and return the reference vectors."""
    with tempfile.TemporaryDirectory(prefix="embrew-verify-") as scratch:
        out = Path(scratch) / "vectors.safetensors"
        command = [sys.executable, "-c", REOPEN, str(folder), str(out), "cpu"]
        command += ["--trust-remote-code"] if encoder.trust_remote_code else []
        command += [] if isinstance(encoder.backbone.model, PeftModel) else ["--merge-adapter"]
        import_path = os.pathsep.join(filter(None, sys.path))  # so that it imports the same modules as this process
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": import_path}
        completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if completed.returncode:
            raise RuntimeError(f"a fresh process cannot open the saved folder:\n{completed.stderr[-2000:]}")
        return load_file(out)["vectors"]


def write_reference_vectors(encoder: EncoderModule, out: str) -> None:
    """Write the reference vectors of an encoder to the safetensors file `out`."""
    save_file({"vectors": reference_vectors(encoder)}, out)
