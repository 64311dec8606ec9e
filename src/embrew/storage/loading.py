"""Open an encoder's folder: its files compared, weights or base and adapters, memory, settings, contexts."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from embrew.files import checksums
from embrew.files.formats import ENCODER, RUN
from embrew.files.names import check_file_name, path_inside
from embrew.files.reading import content_of, read_json
from embrew.files.writing import recover
from embrew.model.adapters import (
    MAX_ROUNDED_SHARE,
    AdapterState,
    check_keeps_base,
    lora_factors,
    lora_of,
    lost_to_rounding,
    reopened_lora,
    sum_of,
)
from embrew.model.backbone import Backbone
from embrew.model.encoder_module import CardFacts, EncoderModule
from embrew.model.weights import (
    cast_weights,
    describe_difference,
    on_same_tensors,
    tensors_under_adapter,
    without_adapter,
)
from embrew.settings.base import Base, Kind
from embrew.settings.encoder import ALWAYS_WRITTEN, EncoderSettings
from embrew.storage.base_model import (
    ASSETS,
    check_kept_base,
    open_base,
    open_config,
    open_weights,
    pick_dtype,
    quiet,
    saved_dtype,
    supports_natively,
)
from embrew.storage.foreign import check_hub_name
from embrew.storage.parts import (
    BASE,
    check_folder,
    open_tokenizer,
    read_adapter,
    read_contexts,
    read_tensors,
)

E = TypeVar("E", bound=EncoderModule)
logger = logging.getLogger(__name__)
SETTINGS, CARD_FACTS = "embrew.json", "training.json"
PARTS = {  # trained in addition to the language model
    "head": "head.safetensors",
    "center": "center.safetensors",
    "demonstrator": "demonstrations.safetensors",
    "memory": "memory.safetensors",  # learned tokens: those of the memory, and of the soft prompt
}
LEARNED = ("memory", "soft_prompt")
AS_TRAINED = "as_trained"
REQUIRED_KEYS = ("base", "adapters", "active_adapter", "full_weights", "steps", "arithmetic", "dtype", *ALWAYS_WRITTEN)


def trained_parts(encoder: EncoderModule) -> dict[str, dict[str, Tensor]]:
    """Return tensors trained, or fitted, in addition to the language model, on the CPU, by the names of `PARTS`."""
    modules = {"head": encoder.head, "center": encoder.center, "demonstrator": encoder.demonstrator}
    parts = {part: module.state_dict() for part, module in modules.items() if module is not None}
    parts["memory"] = dict(encoder.backbone.learned)
    return {
        part: {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        for part, tensors in parts.items()
        if tensors
    }


def final_stage(folder: Path) -> Path:
    """Return the folder of a training run's last stage; any other folder unchanged.

    A folder that a killed process left aside while it was being replaced is moved back first.

    Raises:
        FileNotFoundError: the last stage is not finished.
    """
    if not folder.exists():
        recover(folder)
    run = folder / RUN.file
    if not os.path.lexists(run) or any(os.path.lexists(folder / name) for name in (SETTINGS, checksums.NAME)):
        return folder
    final = path_inside(folder, read_json(run, keys=("final",), kind=RUN)["final"], source=run, key="final")
    if not final.exists():
        recover(final)
    if not final.exists():
        raise FileNotFoundError(
            f"{folder} is a training run whose last stage, {final.name}, is not there; embrew runs "
            f"{quote(str(folder))} says how to go on with it. A finished stage is opened by its own folder"
        )
    return final


def trained_folder(source: str | Path) -> Path:
    """Return the folder of an encoder, given itself or by its training run.

    Raises:
        FileNotFoundError: it is no folder of an encoder.
    """
    folder = final_stage(Path(source))
    if not os.path.lexists(folder / SETTINGS):
        raise FileNotFoundError(f"{source} is no encoder written by embrew; name the folder of one, or of a run")
    return folder


def read_settings(folder: Path, *, verified: bool = False) -> dict[str, Any]:
    """Return the folder's `embrew.json`.

    Args:
        folder: folder of an encoder.
        verified: whether all files were compared with checksums already; otherwise those below 16 MiB are now.

    Raises:
        FileNotFoundError: it is not an encoder folder.
        ValueError: it is damaged, cannot be read, or has another format number.
    """
    path = folder / SETTINGS
    if not os.path.lexists(path) and not (folder / checksums.NAME).is_file():
        raise FileNotFoundError(f"{folder} has no {SETTINGS}; it is not a folder written by save_pretrained")
    if not verified:
        check_folder(folder, large=False)
    return read_json(path, keys=REQUIRED_KEYS, kind=ENCODER)


def load_encoder(
    kind: type[E],
    folder: Path,
    *,
    dtype: str,
    device: torch.device,
    attn_implementation: str | None,
    merge_adapter: bool | Literal["auto"] = False,
    trust_remote_code: bool = False,
) -> E:
    """Open a folder written by `save_encoder`: its weights or the base's, adapters replayed in order, memory, settings.

    Whole weights hold all adapters but one that is still trained. With
    `merge_adapter="auto"` that one is merged into a base's weights only, where rounding takes little of it.
    Adapters on a quantised base are kept in float32 beside its weights. `trust_remote_code` is for the base, or the
    whole weights; the tokenizer is saved in a form that needs no code.
    """
    settings, base, states, verified = _read_folder(folder)
    weights_dtype = _dtype_of_weights(dtype, settings, device)
    to_encode = settings["active_adapter"] and merge_adapter == "auto" and not settings["full_weights"]
    to_encode = to_encode and base.quantization is None  # beside 4-bit weights, it would take as long as before
    active = settings["active_adapter"] and merge_adapter is not True and not to_encode
    merged = states[:-1] if active else states
    model = _open_weights(
        folder,
        base,
        full_weights=settings["full_weights"],
        verified=verified,
        device=device,
        dtype=torch.float32 if merged and base.quantization is None else weights_dtype,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
    )
    backbone = Backbone(model)
    rounded = len(states) - 1 if dtype == AS_TRAINED else 0
    if not _replay(backbone, merged, folder / "adapters", to=weights_dtype, to_encode=to_encode, rounded=rounded):
        to_encode, active, merged = False, True, merged[:-1]
    cast_weights(without_adapter(backbone.causal_lm), weights_dtype)
    if active and not isinstance(backbone.model, PeftModel):
        with content_of(folder / "adapters", also=(RuntimeError,)):
            backbone.use_adapter(reopened_lora(backbone.causal_lm, states[-1], trainable=True))
    backbone.owns_weights = settings["full_weights"]
    backbone.merged |= settings["full_weights"]
    if settings["full_weights"] and not active:
        backbone.train_all()
    encoder = _with_parts(kind, backbone.to(device), folder, settings, base)
    encoder.merged_adapters = [] if settings["full_weights"] else list(merged)
    encoder.merged_to_encode = to_encode
    encoder.trust_remote_code = trust_remote_code
    return encoder


def load_on_base(kind: type[E], folder: Path, model: PreTrainedModel, base: Base) -> E:
    """Open a folder written by `save_encoder` on a base in memory, whose tensors it shares; adapters stay beside them.

    A chain of LoRAs becomes one, of the sum of their ranks, without rounding.

    Raises:
        ValueError: the encoder is of another base, has whole weights, or an adapter that is more than a LoRA on linear
            layers.
    """
    settings, its_base, states, _ = _read_folder(folder)
    if settings["full_weights"]:
        raise ValueError(f"{folder} holds whole weights, which no base in memory gives it; serve it in its own process")
    if not base.same_weights(its_base):
        theirs, ours = (f"{each.name} ({each.sha256 or each.revision})" for each in (its_base, base))
        raise ValueError(f"{folder} was trained on {theirs}, and the base in memory is {ours}; give encoders of that")
    for state in states:
        check_keeps_base(state.config, source=folder)
    with content_of(folder / "adapters", also=(RuntimeError,)):
        adapted = [reopened_lora(on_same_tensors(model), state, trainable=False) for state in states]
    factors = [each for each in map(lora_factors, adapted) if each is not None]
    if len(factors) < len(states):
        raise ValueError(
            f"{folder} has an adapter that is more than a LoRA on linear layers (DoRA, biases, a trained copy of the "
            "embedding matrix); serve it in its own process"
        )
    if len(states) > 1:
        state = lora_of(sum_of(factors), states[-1].config)
        adapted = [reopened_lora(on_same_tensors(model), state, trainable=False)]
    backbone = Backbone(cast(PreTrainedModel, adapted[0].get_base_model()) if adapted else on_same_tensors(model))
    if adapted:
        backbone.use_adapter(adapted[0])
    return _with_parts(kind, backbone, folder, settings, its_base)


def _read_folder(folder: Path) -> tuple[dict[str, Any], Base, list[AdapterState], bool]:
    """Return settings, base and adapters of a folder, and whether it was compared with its checksums."""
    verified = check_folder(folder)
    settings = read_settings(folder, verified=True)
    with content_of(folder / SETTINGS):
        base = Base.from_dict(settings["base"])
        adapters = [folder / "adapters" / str(i) for i in range(settings["adapters"])]
    if base.kind not in get_args(Kind):
        raise ValueError(f"{folder / SETTINGS}: base kind {base.kind!r}; choose from {', '.join(get_args(Kind))}")
    if base.kind == "folder":
        check_file_name(base.name, what=f"{folder / SETTINGS}: base")
    return settings, base, [read_adapter(path) for path in adapters], verified


def _with_parts(kind: type[E], backbone: Backbone, folder: Path, settings: dict[str, Any], base: Base) -> E:
    """Return the encoder of a folder on its language model: learned tokens, tokenizer, heads, contexts, history."""
    _read_learned(backbone, folder / PARTS["memory"])
    backbone.to(backbone.device)
    tokenizer = open_tokenizer(folder)
    with content_of(folder / SETTINGS):
        encoder = kind(backbone, tokenizer, base, EncoderSettings.from_dict(settings))
    for part in trained_parts(encoder).keys() - {"memory"}:
        tensors = read_tensors(folder / PARTS[part])
        with content_of(folder / PARTS[part], also=(RuntimeError,)):
            getattr(encoder, part).load_state_dict(tensors)
    _read_history(encoder, folder, settings)
    return encoder.eval()


def _read_history(encoder: EncoderModule, folder: Path, settings: dict[str, Any]) -> None:
    """Give an encoder its contexts, the folder of its base, and what is known of its training."""
    encoder.contexts = read_contexts(folder)
    encoder.steps, encoder.compute_dtype = settings["steps"], settings["arithmetic"]
    if encoder.base.kind == "folder" and (folder / BASE).is_dir():
        encoder.base_folder = (folder / BASE).absolute()
    if (folder / "recipe.yaml").is_file():
        encoder.recipe = (folder / "recipe.yaml").read_text()
    if (folder / CARD_FACTS).is_file():
        encoder.card_facts = cast(CardFacts, read_json(folder / CARD_FACTS))


def _read_learned(backbone: Backbone, path: Path) -> None:
    for part, rows in read_tensors(path).items() if os.path.lexists(path) else ():
        if part not in LEARNED:
            raise ValueError(f"{path} holds a tensor {part[:80]!r}; known are {', '.join(LEARNED)}")
        setattr(backbone, part, nn.Parameter(rows))


def _replay(
    backbone: Backbone,
    states: Sequence[AdapterState],
    source: Path,
    *,
    to: torch.dtype,
    to_encode: bool = False,
    rounded: int = 0,
) -> bool:
    """Merge adapters into the weights, in order; return False where the last one is left on them.

    Args:
        backbone: without an adapter.
        states: the adapters.
        source: name of the adapters in errors.
        to: dtype of the sums.
        to_encode: leave the last one where rounding takes more than a little of it.
        rounded: number of first ones that training in bfloat16 rounded in the same way.
    """
    for i, state in enumerate(states):
        last = to_encode and i + 1 == len(states)
        with content_of(source, also=(RuntimeError,)):
            adapted = reopened_lora(backbone.causal_lm, state, trainable=last)
        backbone.use_adapter(adapted)
        if last and lost_to_rounding(adapted, to) > MAX_ROUNDED_SHARE:
            return False
        backbone.merge_adapter(rounds_to=None if i < rounded else to)
    return True


def knows_base(encoder: EncoderModule) -> bool:
    """Return whether the base of an encoder can be opened again."""
    return encoder.base.kind != "folder" or encoder.base_folder is not None


def open_base_again(encoder: EncoderModule, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Return the base of an encoder as it was opened, on the CPU, by default in the dtype of its weights."""
    is_local = encoder.base.kind == "folder" and encoder.base_folder is not None
    model, _, _ = open_base(
        str(encoder.base_folder) if is_local else encoder.base.name,
        revision=encoder.base.revision,
        expected=encoder.base,
        dtype=dtype or encoder.backbone.dtype,
        attn_implementation=encoder.backbone.inner.config._attn_implementation,
        trust_remote_code=encoder.trust_remote_code,
        device=encoder.device,
    )
    return model


def difference_to_base(encoder: EncoderModule) -> str | None:
    """Return how the weights under the adapter differ from the base on disk with the merged adapters; None: not.

    Exactly, where no adapter was merged; otherwise up to a few roundings. 4-bit weights are never trained.
    """
    if encoder.backbone.is_quantized or not knows_base(encoder):
        return None
    again = Backbone(open_base_again(encoder, torch.float32 if encoder.merged_adapters else None))
    _replay(again, encoder.merged_adapters, Path("adapters"), to=encoder.backbone.dtype)
    cast_weights(again.causal_lm, encoder.backbone.dtype)
    ours, theirs = (tensors_under_adapter(backbone.causal_lm) for backbone in (encoder.backbone, again))
    return describe_difference(ours, theirs, exactly=not encoder.merged_adapters)


def _dtype_of_weights(dtype: str, settings: dict[str, Any], device: torch.device) -> torch.dtype:
    """Return the dtype to open a saved encoder in: by name, as saved (`auto`), or that of its training's arithmetic."""
    if dtype == AS_TRAINED and settings["arithmetic"] == "bfloat16" and supports_natively(torch.bfloat16, device):
        return torch.bfloat16
    return saved_dtype(settings["dtype"], device) if dtype in ("auto", AS_TRAINED) else pick_dtype(dtype, device)


def _open_weights(
    folder: Path,
    base: Base,
    *,
    full_weights: bool,
    verified: bool,
    device: torch.device,
    dtype: torch.dtype,
    attn_implementation: str | None,
    trust_remote_code: bool,
) -> PreTrainedModel:
    if full_weights:
        path = folder / "weights"
        with quiet(), content_of(path, also=(AssertionError, RuntimeError)):
            return open_weights(
                str(path),
                open_config(str(path), trust_remote_code=trust_remote_code),
                dtype=dtype,
                attn_implementation=attn_implementation,
                trust_remote_code=trust_remote_code,
            )
    if base.kind == "asset" and base.name not in ASSETS:
        raise ValueError(
            f"{folder} needs the base {base.name}, which this embrew does not ship; it has {', '.join(ASSETS)}"
        )
    if base.kind == "hub":
        check_hub_name(base.name, source=folder / SETTINGS)
    is_local = base.kind == "folder"
    if is_local and not verified:
        check_kept_base(base, folder)
    model, _, _ = open_base(
        str(folder / BASE) if is_local else base.name,
        revision=base.revision,
        dtype=dtype,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
        expected=base,
        verified=is_local,
        device=device,
    )
    return model
