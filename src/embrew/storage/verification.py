"""Verify a saved folder: what was written is opened again and compared."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor

from embrew.float32 import full_float32
from embrew.identity import replayed
from embrew.model.adapters import adapter_state
from embrew.model.contexts import Context, prepare
from embrew.model.weights import differing, tensors_under_adapter
from embrew.settings.encoder import Demonstration, EncoderSettings
from embrew.storage.opening import LEARNED, PARTS, load_encoder, read_settings, trained_parts
from embrew.storage.parts import check_written, first_difference, open_tokenizer, read_adapter
from embrew.text.tokens import Segment, Tokens

if TYPE_CHECKING:
    from embrew.encoder import Encoder

logger = logging.getLogger(__name__)

TEXTS = (
    "A heron waits in the shallow water.",
    "The bird stands still at the river's edge.",
    "Interest rates rose by a quarter of a point on Tuesday.",
    "How do I reverse a linked list?",
    "def area(radius: float) -> float:\n    return 3.14159 * radius ** 2",
    "ok",
    "Der Zug nach Brno fährt heute von Gleis sieben.",
    "今日は雨が降っています。",
    "مرحبا بالعالم",
    "Emoji are text too: 🦆🌧️👩🏽‍🚀",
    "A token that looks special: </s> <pad> <mem0> [CLS]",
    "   spaces   before,   between and after   ",
    "1234567890 3.14 -7e-3 0x1F",
    "UPPER lower CamelCase snake_case kebab-case",
    " ".join(["Long texts are cut at the end and keep their memory tokens."] * 60),
    "Last of all, a sentence that ends without a full stop",
)
"""Texts of every kind that a saved folder is compared on."""

INSTRUCTION = "Find a similar text: "
REFERENCE = "<reference>"  # no name that a user can give
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


def tolerance(dtype: torch.dtype) -> float:
    """Return largest difference allowed between two unit vectors that should be the same."""
    return TOLERANCE.get(str(dtype).removeprefix("torch."), 2e-2)


def reference_vectors(encoder: Encoder) -> Tensor:
    """Return unit vectors of the reference texts, `(16, hidden)` float32; with demonstrations, 16 more after two."""
    with full_float32(encoder.device.type):
        return _reference_vectors(encoder)


def _reference_vectors(encoder: Encoder) -> Tensor:
    found = [encoder.encode(list(TEXTS), batch_size=8, show_progress_bar=False)]
    if encoder.demonstrator is not None:
        pairs = (Demonstration(*TEXTS[:2]), Demonstration(*TEXTS[3:5]))[: encoder.demonstrator.settings.learnable or 2]
        context = prepare(encoder, Context(_instruction(encoder), pairs))
        encoder.contexts[REFERENCE] = context  # added, since another thread may encode with the others
        try:
            found.append(encoder.encode(list(TEXTS), REFERENCE, batch_size=8, show_progress_bar=False))
        finally:
            del encoder.contexts[REFERENCE]
    return torch.nn.functional.normalize(torch.cat([torch.as_tensor(vectors) for vectors in found]), dim=-1)


def _instruction(encoder: Encoder) -> str:
    """Return an instruction for the demonstrations; none if an encoder of short texts has no room for it."""
    try:
        encoder.template.rows(list(TEXTS), instruction=INSTRUCTION, max_length=encoder.max_length["query"])
    except ValueError:
        return ""
    return INSTRUCTION


def verify_folder(encoder: Encoder, folder: Path, verify: str) -> dict[str, Any]:
    """Compare a written folder with the encoder in memory.

    Returns:
        What was checked, with figures, for `embrew.json`.

    Raises:
        RuntimeError: a check failed; says which and by how much.
    """
    vectors = reference_vectors(encoder)
    checks: dict[str, Any] = {"verify": verify}
    _check_settings(encoder, folder)
    check_written(encoder, folder)
    _check_files(encoder, folder)
    if verify == "full":
        reopened, checks["compared_with"] = _in_fresh_process(encoder, folder, vectors), "the folder in a fresh process"
    elif encoder.backbone.owns_weights:
        reopened, checks["compared_with"] = _opened_anew(encoder, folder), "the folder opened anew"
    else:
        reopened, checks["compared_with"] = _reopened(encoder, folder), "its files on the base in memory"
    difference = float((reopened - vectors).abs().max())
    checks["reopened_max_difference"] = difference
    if not difference <= tolerance(encoder.backbone.dtype):
        raise RuntimeError(
            f"the saved folder gives other vectors than the encoder in memory: largest difference {difference:.2e}, "
            f"allowed {tolerance(encoder.backbone.dtype):.0e} ({encoder.backbone.dtype})"
        )
    checks["attention"] = check_attention(encoder)
    if isinstance(encoder.backbone.model, PeftModel) and encoder.steps:
        checks["cosine_to_switched_off"] = _check_adapter(encoder, vectors)
    return checks


def _check_settings(encoder: Encoder, folder: Path) -> None:
    written = EncoderSettings.from_dict(read_settings(folder, verified=True))
    for key, (ours, theirs) in encoder.settings.differences(written).items():
        raise RuntimeError(f"embrew.json holds {key}={theirs!r}, the encoder has {ours!r}")
    tokenizer = open_tokenizer(folder)
    for template, reopened in zip(
        encoder.templates, encoder.make_templates(tokenizer, encoder.backbone.memory_ids), strict=True
    ):
        for name, prompt in encoder.prompts.items():
            how_long: Any = {"instruction": prompt, "max_length": encoder.max_seq_length}
            for ours, theirs in zip(template.rows(TEXTS, **how_long), reopened.rows(TEXTS, **how_long), strict=True):
                if ours != theirs:
                    where = first_difference(ours.ids, theirs.ids, tokenizer) if ours.ids != theirs.ids else "segments"
                    raise RuntimeError(
                        f"the saved tokenizer gives other tokens than the one in memory (prompt {name!r}): {where}"
                    )


def _check_files(encoder: Encoder, folder: Path) -> None:
    """Raise unless the adapters, and tensors trained in addition to the language model, were written to the bit."""
    for part, tensors in trained_parts(encoder).items():
        _same_tensors(tensors, load_file(folder / PARTS[part]), part)
    states = replayed(encoder)
    for i, state in enumerate(states):
        _same_tensors(state.tensors, read_adapter(folder / "adapters" / str(i)).tensors, f"adapter {i}")
    if isinstance(encoder.backbone.model, PeftModel):
        written = read_adapter(folder / "adapters" / str(len(states)))
        _same_tensors(adapter_state(encoder.backbone.model).tensors, written.tensors, "adapter")


def _reopened(encoder: Encoder, folder: Path) -> Tensor:
    """Return vectors after reading the written tensors into the live model (and putting its own back)."""
    undo: list[Callable[[], None]] = []
    try:
        for name, rows in encoder.backbone.learned.items():
            before = rows.data
            rows.data = load_file(folder / LEARNED)[name].to(before.device)
            undo.append(partial(setattr, rows, "data", before))
        model = encoder.backbone.model
        if isinstance(model, PeftModel):
            own = adapter_state(model)
            written = read_adapter(folder / "adapters" / str(len(replayed(encoder))))
            set_peft_model_state_dict(model, written.tensors)
            undo.append(lambda: set_peft_model_state_dict(model, own.tensors) and None)
        return reference_vectors(encoder)
    finally:
        for step in undo:
            step()


def _same_tensors(ours: dict[str, Tensor], written: dict[str, Tensor], what: str) -> None:
    if ours.keys() != written.keys():
        odd = sorted(ours.keys() ^ written.keys())
        raise RuntimeError(f"{what}: the written file and the model differ in their tensors: {', '.join(odd[:3])}")
    for name, tensor in ours.items():
        if not torch.equal(tensor.cpu(), written[name]):
            raise RuntimeError(f"{what}: tensor {name} was written with other values than the model holds")


def _opened_anew(encoder: Encoder, folder: Path) -> Tensor:
    """Return vectors of the folder as a reader opens it, weights and all.

    Raises:
        RuntimeError: the weights under the adapter are not those in memory; says which.
    """
    backbone, device = encoder.backbone, encoder.device
    if device.type != "cpu":
        encoder.to("cpu")  # so that an accelerator never holds both
    try:
        kernel = backbone.inner.config._attn_implementation
        how: dict[str, Any] = {"attn_implementation": kernel, "trust_remote_code": encoder.trust_remote_code}
        how["merge_adapter"] = not isinstance(backbone.model, PeftModel)
        opened = load_encoder(type(encoder), folder, dtype="auto", device=device, **how)
        vectors = reference_vectors(opened)
        theirs = tensors_under_adapter(opened.backbone.causal_lm.to("cpu"))
    finally:
        if device.type != "cpu":
            encoder.to(device)
    difference = differing(tensors_under_adapter(backbone.causal_lm), theirs, exactly=True)
    if difference is not None:
        raise RuntimeError(f"weights/ was written with other values than the model holds: {difference}")
    return vectors


def _in_fresh_process(encoder: Encoder, folder: Path, vectors: Tensor) -> Tensor:
    with tempfile.TemporaryDirectory(prefix="embrew-verify-") as scratch:
        out = Path(scratch) / "vectors.safetensors"
        command = [
            sys.executable,
            "-m",
            "embrew.reopened",
            str(folder),
            str(out),
            str(vectors.device),
        ]
        command += ["--trust-remote-code"] if encoder.trust_remote_code else []
        command += [] if isinstance(encoder.backbone.model, PeftModel) else ["--merge-adapter"]
        path = os.pathsep.join(
            filter(None, sys.path)
        )  # modules from where this process has them, not the current folder
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise RuntimeError(f"a fresh process cannot open the saved folder:\n{done.stderr[-2000:]}")
        return load_file(out)["vectors"]


def check_attention(encoder: Encoder) -> str:
    """Change the last token of a text and see whether its first position moves, as the attention mode says.

    Alone and in a batch with a longer text, so padded and not.

    Raises:
        RuntimeError: the attention is not what the encoder says.
    """
    expected = encoder.attention.mode != "causal"
    short, long = encoder.template.rows(["one two three", "four five six seven eight nine ten"])
    for rows, case in (([short], "batch of one"), ([short, long], "batch of two, padded")):
        tokens = Tokens.pad(rows).to(encoder.device)
        text = tokens.where(Segment.TEXT)[0].nonzero()[:, 0]
        changed = tokens.input_ids.clone()
        changed[0, text[-1]] = (changed[0, text[-1]] + 1) % encoder.backbone.vocab_size
        with torch.inference_mode():
            before = encoder.hidden_states(tokens)[0, text[0]]
            after = encoder.hidden_states(Tokens(changed, tokens.segment_ids))[0, text[0]]
        moved = bool((before - after).abs().max() > 1e-6 * before.abs().max())
        if moved != expected:
            raise RuntimeError(
                f"attention={encoder.attention.mode}, but the first token {'moves' if moved else 'does not move'} when "
                f"the last one changes ({case})"
            )
    return encoder.attention.mode


def _check_adapter(encoder: Encoder, vectors: Tensor) -> float:
    with encoder.backbone.adapter_off():
        base = reference_vectors(encoder)
    if torch.equal(base, vectors):
        raise RuntimeError(f"the adapter was trained for {encoder.steps} steps and changes no vector at all")
    cosine = float((base * vectors).sum(-1).mean())
    if cosine > 0.9999:
        logger.warning("the adapter hardly changes the vectors: mean cosine to the switched-off model %.6f", cosine)
    return cosine
