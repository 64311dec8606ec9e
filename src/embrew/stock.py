"""Open third-party Sentence-Transformers folders without running their code or unpickling their weights."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from embrew.files.names import is_safe_name
from embrew.files.reading import BrokenFile, broken, check_regular, content_of, is_content_error, read_json
from embrew.model.adapters import KEY_PREFIX
from embrew.model.encoder_module import EncoderModule
from embrew.model.layers import reads_both_ways
from embrew.model.pooling import ACTIVATIONS
from embrew.settings.encoder import MODES, EncoderSettings
from embrew.storage.base_model import ASSETS, OPENING_ERRORS, SMOLLM2, is_encoder, pick_device, pick_dtype
from embrew.storage.foreign import (
    ADAPTER,
    INDEX,
    HubOptions,
    asks_for_code,
    check_adapter,
    check_counts,
    check_index,
    check_normalizer,
    check_not_quantized,
    check_settings,
    check_weights,
    file_of,
)
from embrew.storage.parts import TENSORS, read_tensors
from embrew.storage.peft_folder import same_values
from embrew.storage.saving import tolerance
from embrew.text.template import ids_added_after
from embrew.text.texts import SIDES
from embrew.text_encoder import TextEncoder, resolved_prompts

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
OUTPUT = "sentence_embedding"
NO_LIMIT, DEFAULT_LENGTH = 10**6, 512  # tokens: a limit above the first is none, and the second takes its place
MODULES, WORD_EMBEDDINGS = "modules.json", "wordembedding_config.json"
UNKNOWN = re.compile(r"unexpected keyword argument '([^']+)'")
CLASS = re.compile(r"sentence_transformers(\.[a-z_][a-z0-9_]*)*\.[A-Z][A-Za-z0-9]*")
"""Dotted names of the library's own classes, not of names that its modules import."""
SETTINGS = (
    "config.json",
    *(
        f"sentence_{kind}_config.json"
        for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
PICKLED = {
    "pytorch_model.bin": ("model.safetensors", INDEX),
    "pytorch_model.bin.index.json": ("model.safetensors", INDEX),
    "adapter_model.bin": ("adapter_model.safetensors",),
}
"""Files of pickled weights, and the safetensors files that replace them."""


def open_stock(name: str, *, dtype: str = "auto") -> SentenceTransformer:
    """Open a Sentence-Transformers folder or Hub model with stock modules and safetensors weights.

    Args:
        name: the folder or Hub id.
        dtype: `float32` or `bfloat16`; `auto`: the saved dtype.

    Raises:
        ValueError: the model needs custom code, or its weights are pickled.
    """
    from sentence_transformers import SentenceTransformer

    check_stock(name)
    options = {} if dtype == "auto" else {"dtype": pick_dtype(dtype, pick_device(None))}
    try:
        model = SentenceTransformer(name, trust_remote_code=False, model_kwargs={"use_safetensors": True, **options})
    except Exception as error:
        if asks_for_code(error):
            raise _own_code(name, "its configuration (auto_map)") from error
        if isinstance(error, TypeError) and (unknown := UNKNOWN.search(str(error))):
            raise ValueError(
                f"{name}: a settings file has the key {unknown[1]!r}, which Sentence-Transformers "
                f"{version('sentence-transformers')} does not know; remove it, or install the version that wrote it"
            ) from error
        if not Path(name).is_dir() or not is_content_error(error, also=OPENING_ERRORS):
            raise
        raise broken(Path(name), error) from error
    _check_adapters(name, model)
    return model


class Reading(NamedTuple):
    """How a Sentence-Transformers model reads texts.

    Attributes:
        settings: settings of an encoder that reads texts so.
        dense: tensors of its layers after pooling, by the names of `DenseLayers`.
        vectors: unit vectors of `REFERENCE` by encode method, float32 `(texts, dimensions)`.
    """

    settings: EncoderSettings
    dense: dict[str, Tensor]
    vectors: dict[str, np.ndarray]


REFERENCE = (
    "A heron waits in the shallow water.",
    "How do I reverse a linked list?",
    "Der Zug nach Brno fährt heute von Gleis sieben, 今日は雨が降っています。",
    "  Two  spaces, UPPER lower, 3.14 -7e-3\n",
    " ".join(["Long texts are truncated at the end."] * 40),
)
"""Texts, one of them longer than `SHORT`, that both readings of a model are compared on; without special tokens."""
SHORT = 256  # tokens: enough for the longest prompts
READING_FIELDS = frozenset({"template", "words_after", "attention", "pooling"})
PROMPT_FIELDS = ("prompts", "default_prompt_name", "max_length")
_READINGS: dict[tuple[str, str], Reading] = {}
_COMPARED: set[tuple[int, str]] = set()


def is_stock(name: str) -> bool:
    """Return whether a name is that of a Sentence-Transformers folder, or of such a model of the Hub or its cache."""
    if name in (*ASSETS, SMOLLM2) or Path(name).exists():
        return os.path.lexists(Path(name, MODULES))
    return file_of(name, MODULES) is not None


def stock_reading(
    name: str, settings: EncoderSettings | None, changed: Collection[str], dtype: torch.dtype
) -> Reading | None:
    """Return how a Sentence-Transformers model reads texts, if an encoder is to read it so.

    Args:
        name: name of any model.
        settings: given settings; they may be those of a `Reading`, from a recipe.
        changed: names of single settings that were given.
        dtype: dtype of the weights.
    """
    if not is_stock(name) or (settings is None and not READING_FIELDS.isdisjoint(changed)):
        return None
    if settings is None or settings.pooling.dense is not None:
        return read_stock(name, dtype=dtype)
    return _READINGS.get(_key(name, dtype))


def read_stock(name: str, *, dtype: torch.dtype = torch.float32) -> Reading:
    """Return how a Sentence-Transformers model reads texts, so that an encoder can read, and learn, in the same way.

    The model is opened, asked, and closed; once per process.

    Raises:
        ValueError: it has modules, or a pooling, that an encoder has not; or as `open_stock`.
    """
    key = _key(name, dtype)
    if key not in _READINGS:
        _READINGS[key] = _read(name, open_stock(name, dtype=str(dtype).removeprefix("torch.")))
    return _READINGS[key]


def _key(name: str, dtype: torch.dtype) -> tuple[str, str]:
    """Return a key that changes where the files of a folder do."""
    folder = Path(name)
    if not folder.exists():
        return name, str(dtype)
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".safetensors"))
    stats = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    return f"{folder.resolve()} {stats}", str(dtype)


def _read(name: str, model: SentenceTransformer) -> Reading:
    parts: list[Any] = list(model)
    kinds = [type(part).__name__ for part in parts]
    layers = [part for part, kind in zip(parts, kinds, strict=True) if kind == "Dense"]
    expected_kinds = ["Transformer", "Pooling", *["Dense"] * len(layers)]
    stock = {mode.stock: key for key, mode in MODES.items() if mode.stock}
    if kinds not in (expected_kinds, [*expected_kinds, "Normalize"]):
        raise _as_it_is(name, f"has the modules {', '.join(kinds)}", "Transformer, Pooling, Dense and Normalize")
    mode = stock.get(parts[1].pooling_mode) if isinstance(parts[1].pooling_mode, str) else None
    if mode is None:
        raise _as_it_is(name, f"pools with {parts[1].pooling_mode}", ", ".join(stock))
    if not parts[1].include_prompt:
        raise _as_it_is(name, "leaves its prompt out of the pooling", "poolings over the whole input")
    activations = {activation: key for key, activation in ACTIVATIONS.items()}
    unknown = [kind for layer in layers if (kind := type(layer.activation_function)) not in activations]
    if unknown or any(
        (layer.module_input_name, layer.module_output_name, layer.use_residual) != (OUTPUT, OUTPUT, False)
        for layer in layers
    ):
        problem = f"the activation {unknown[0].__name__}" if unknown else "other inputs than the pooled vector"
        raise _as_it_is(name, f"has a Dense module with {problem}", ", ".join(ACTIVATIONS))
    config, tokenizer = parts[0].auto_model.config, model.tokenizer
    ends_with_sep = tokenizer.sep_token_id is not None and ids_added_after(tokenizer) == [tokenizer.sep_token_id]
    longest = min(model.max_seq_length or NO_LIMIT, getattr(config, "max_position_embeddings", NO_LIMIT) or NO_LIMIT)
    prompts = resolved_prompts(cast(TextEncoder, model))
    dense = [
        {
            "dimensions": layer.out_features,
            "bias": layer.linear.bias is not None,
            "activation": activations[type(layer.activation_function)],
        }
        for layer in layers
    ]
    settings = EncoderSettings.create(
        template="{instruction}{text}" + ("{end}" if ids_added_after(tokenizer) and not ends_with_sep else ""),
        attention="bidirectional" if is_encoder(config) or reads_both_ways(config) else "causal",
        pooling={"mode": mode, **({"dense": dense} if dense else {})},
        prompts={**model.prompts, **{side: prompts[side] for side in SIDES}},
        default_prompt_name=model.default_prompt_name,
        max_length=longest if longest < NO_LIMIT else DEFAULT_LENGTH,
        normalize="Normalize" in kinds,
    )
    tensors = {
        f"linear.{i}.{key}": tensor.detach().float().cpu()
        for i, layer in enumerate(layers)
        for key, tensor in layer.linear.state_dict().items()
    }
    return Reading(settings, tensors, vectors_of_reference(model))


def vectors_of_reference(encoder: Any, limit: int | None = None) -> dict[str, np.ndarray]:
    """Return vectors of `REFERENCE` of length 1, by the names of encode methods, at most `SHORT` tokens of each text.

    Args:
        encoder: an `Encoder` or a Sentence-Transformers model; the limit of the latter is set back.
        limit: for an `Encoder`, `SHORT` or less.
    """
    options: dict[str, Any] = {"show_progress_bar": False, "normalize_embeddings": True}
    before = None if limit else encoder.max_seq_length
    if limit:
        options["max_length"] = limit
    else:
        encoder.max_seq_length = min(SHORT, before or SHORT)
    try:
        return {
            name: np.asarray(getattr(encoder, name)(list(REFERENCE), **options), dtype=np.float32)
            for name in ("encode", "encode_query", "encode_document")
        }
    finally:
        if not limit:
            encoder.max_seq_length = before


def dense_module(weight: Tensor, bias: Tensor | None, activation: torch.nn.Module, dtype: torch.dtype) -> Any:
    """Return the stock module of a layer on the pooled vector, in the dtype of that vector."""
    from sentence_transformers.base.modules import Dense

    return Dense(
        weight.shape[1],
        weight.shape[0],
        bias=bias is not None,
        activation_function=activation,
        init_weight=weight.detach().to(dtype, copy=True),  # of some of its rows, for safetensors
        init_bias=None if bias is None else bias.detach().to(dtype, copy=True),
    ).requires_grad_(False)


def load_dense(name: str, reading: Reading | None, encoder: EncoderModule) -> None:
    """Give an encoder the layers after pooling of the Sentence-Transformers model that it reads.

    Raises:
        ValueError: it reads none, or one with other layers.
    """
    if reading is None or encoder.head is None or reading.settings.pooling.dense != encoder.pooling.dense:
        raise ValueError(f"pooling.dense is not that of {name}; only a Sentence-Transformers model has such layers")
    encoder.head.load_state_dict(reading.dense)


def check_as_stock(name: str, reading: Reading, encoder: EncoderModule) -> None:
    """Compare an encoder with the Sentence-Transformers model whose reading it has taken over; once per process.

    Raises:
        ValueError: its vectors are others.
    """
    key, settings = (id(reading), str(encoder.device)), reading.settings
    if key in _COMPARED or any(
        getattr(encoder.settings, field) != getattr(settings, field) for field in READING_FIELDS
    ):
        return
    unchanged = encoder.with_settings(**{field: getattr(settings, field) for field in PROMPT_FIELDS})
    ours = vectors_of_reference(unchanged, min(SHORT, unchanged.max_seq_length))
    worst = max(float(np.abs(ours[side] - vectors).max()) for side, vectors in reading.vectors.items())
    allowed = tolerance(encoder.backbone.dtype, encoder.backbone.num_layers)
    logger.info("%s: largest difference to Sentence-Transformers' vectors %.1e", name, worst)
    if not worst <= allowed:
        raise ValueError(
            f"{name} has other vectors when embrew reads it than Sentence-Transformers gives (largest difference "
            f"{worst:.1e}, allowed {allowed:.0e}), so it cannot be trained further here; embrew evaluates and serves "
            "it as it is"
        )
    _COMPARED.add(key)


def _as_it_is(name: str, why: str, supported: str) -> ValueError:
    return ValueError(
        f"{name} {why}; an encoder has {supported}. It cannot be trained further here; embrew evaluates and serves it "
        "as it is"
    )


def _check_adapters(name: str, model: SentenceTransformer) -> None:
    """Raise unless every tensor of an adapter is on the model: transformers drops those that it finds no place for."""
    values = {key.replace(".default.", "."): value for key, value in model.state_dict().items() if ".lora_" in key}
    for _, folder in _modules(name):
        path = file_of(name, TENSORS, subfolder=folder)
        tensors = {} if path is None else read_tensors(Path(path))
        for key, tensor in tensors.items():
            tail = "." + key.removeprefix(KEY_PREFIX)
            if not any(full.endswith(tail) and same_values(value, tensor) for full, value in values.items()):
                raise BrokenFile(
                    f"{name}: {key} of its adapter has no place on the model that it names as its base; Sentence-"
                    "Transformers would leave it out, in silence: get the folder and the base again"
                )


def check_stock(name: str) -> None:
    """Raise unless a Sentence-Transformers folder or Hub model has safetensors weights and stock modules only.

    Raises:
        ValueError: a module is not the library's, or lies outside the folder; weights are pickled; a kernel of the Hub
            is requested; an adapter is not a LoRA. The base of a LoRA must meet the same conditions.
    """
    for kind, folder in _modules(name):
        if not CLASS.fullmatch(kind):
            raise _own_code(name, f"{MODULES}, which names the class {kind[:80]!r}")
        if folder and not is_safe_name(folder):
            raise ValueError(f"{name}: {MODULES} names the folder {folder[:80]!r}, which is not within the model's own")
        tokenizer_config = file_of(name, WORD_EMBEDDINGS, subfolder=folder)
        tokenizer = read_json(Path(tokenizer_config)).get("tokenizer_class") if tokenizer_config else None
        if tokenizer is not None and not CLASS.fullmatch(str(tokenizer)):
            raise _own_code(name, f"{WORD_EMBEDDINGS}, which names the class {str(tokenizer)[:80]!r}")
        for pickled, safe in PICKLED.items():
            if all(file_of(name, file, subfolder=folder) is None for file in safe) and file_of(
                name, pickled, subfolder=folder
            ):
                raise ValueError(
                    f"{name} has pickled weights only ({'/'.join(filter(None, (folder, pickled)))}), which embrew "
                    "does not read; if you trust the model, open it with Sentence-Transformers, save it again (as "
                    "model.safetensors), and give that folder"
                )
        check_regular(Path(name, folder))
        check_index(name, name, subfolder=folder)
        check_counts(name, name, subfolder=folder)
        check_normalizer(name, name, subfolder=folder)
        check_settings(name, name, *SETTINGS, subfolder=folder)
        config = file_of(name, "config.json", subfolder=folder)
        if config is not None:
            check_not_quantized(name, read_json(Path(config)), quantization=False)
        adapter = file_of(name, ADAPTER, subfolder=folder)
        if adapter is not None:
            lora = read_json(Path(adapter))
            check_adapter(lora, source=Path(adapter))
            _check_base(lora)


def _check_base(config: dict[str, Any]) -> None:
    """Raise if the base of an adapter needs custom code or has no safetensors weights."""
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if isinstance(base, str) and base:
        options: HubOptions = {"revision": revision} if revision and not Path(base).is_dir() else {}
        check_weights(base, base, **options)
        check_counts(base, base, **options)


def _modules(name: str) -> Iterator[tuple[str, str]]:
    """Yield class and folder of every module in `modules.json`, and of those in its routers."""
    path = file_of(name, MODULES)
    if path is None and os.path.lexists(Path(name) / MODULES):
        path = str(Path(name) / MODULES)  # a folder or a broken link: opening it raises
    waiting: list[tuple[str, str]] = []
    if path is not None:
        with content_of(Path(path)):
            waiting = [
                (str(entry["type"]), str(entry.get("path", ""))) for entry in json.loads(Path(path).read_bytes())
            ]
    read = set()
    while waiting:
        kind, folder = waiting.pop(0)
        if (kind, folder) in read:
            continue
        read.add((kind, folder))
        yield kind, folder
        for file in ("router_config.json", "config.json"):
            config = file_of(name, file, subfolder=folder)
            routes = None if config is None else read_json(Path(config))
            types = routes.get("types") if isinstance(routes, dict) and kind.endswith((".Router", ".Asym")) else None
            if isinstance(types, dict):
                waiting += [(str(kind), "/".join(filter(None, (folder, str(path))))) for path, kind in types.items()]
                break


def _own_code(name: str, where: str) -> ValueError:
    return ValueError(
        f"{name} needs custom code, according to {where}; embrew does not run code of Sentence-Transformers models: if "
        "you have read that code and trust it, open it with SentenceTransformer(..., trust_remote_code=True)"
    )
