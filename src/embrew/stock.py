"""Open third-party Sentence-Transformers folders without running their code or unpickling their weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embrew.files.names import is_safe_name
from embrew.files.reading import BrokenFile, broken, check_regular, content_of, is_content_error, read_json
from embrew.storage.base_model import OF_OPENING, pick_device, pick_dtype
from embrew.storage.foreign import (
    ADAPTER,
    INDEX,
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
from embrew.storage.peft_folder import PREFIX, same_values

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODULES, WORDS = "modules.json", "wordembedding_config.json"
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
        if not Path(name).is_dir() or not is_content_error(error, also=OF_OPENING):
            raise
        raise broken(Path(name), error) from error
    _check_adapters(name, model)
    return model


def _check_adapters(name: str, model: SentenceTransformer) -> None:
    """Raise unless every tensor of an adapter is on the model: transformers drops those that it finds no place for."""
    values = {key.replace(".default.", "."): value for key, value in model.state_dict().items() if ".lora_" in key}
    for _, place in _modules(name):
        path = file_of(name, TENSORS, subfolder=place)
        tensors = {} if path is None else read_tensors(Path(path))
        for key, tensor in tensors.items():
            tail = "." + key.removeprefix(PREFIX)
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
    for kind, place in _modules(name):
        if not CLASS.fullmatch(kind):
            raise _own_code(name, f"{MODULES}, which names the class {kind[:80]!r}")
        if place and not is_safe_name(place):
            raise ValueError(f"{name}: {MODULES} names the folder {place[:80]!r}, which is not within the model's own")
        where: dict[str, Any] = {"subfolder": place}
        words = file_of(name, WORDS, **where)
        tokenizer = read_json(Path(words)).get("tokenizer_class") if words else None
        if tokenizer is not None and not CLASS.fullmatch(str(tokenizer)):
            raise _own_code(name, f"{WORDS}, which names the class {str(tokenizer)[:80]!r}")
        for pickled, safe in PICKLED.items():
            if all(file_of(name, file, **where) is None for file in safe) and file_of(name, pickled, **where):
                raise ValueError(
                    f"{name} has pickled weights only ({'/'.join(filter(None, (place, pickled)))}), which embrew "
                    "does not read; if you trust the model, open it with Sentence-Transformers, save it again (as "
                    "model.safetensors), and give that folder"
                )
        check_regular(Path(name, place))
        check_index(name, name, **where)
        check_counts(name, name, **where)
        check_normalizer(name, name, **where)
        check_settings(name, name, *SETTINGS, **where)
        config = file_of(name, "config.json", **where)
        if config is not None:
            check_not_quantized(name, read_json(Path(config)), quantization=False)
        adapter = file_of(name, ADAPTER, **where)
        if adapter is not None:
            lora = read_json(Path(adapter))
            check_adapter(lora, source=Path(adapter))
            _check_base(lora)


def _check_base(config: dict[str, Any]) -> None:
    """Raise if the base of an adapter needs custom code or has no safetensors weights."""
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if isinstance(base, str) and base:
        options: dict[str, Any] = {"revision": revision} if revision and not Path(base).is_dir() else {}
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
        kind, place = waiting.pop(0)
        if (kind, place) in read:
            continue
        read.add((kind, place))
        yield kind, place
        for file in ("router_config.json", "config.json"):
            config = file_of(name, file, subfolder=place)
            routes = None if config is None else read_json(Path(config))
            types = routes.get("types") if isinstance(routes, dict) and kind.endswith((".Router", ".Asym")) else None
            if isinstance(types, dict):
                waiting += [(str(of), "/".join(filter(None, (place, str(sub))))) for sub, of in types.items()]
                break


def _own_code(name: str, where: str) -> ValueError:
    return ValueError(
        f"{name} needs custom code, according to {where}; embrew does not run code of Sentence-Transformers models: if "
        "you have read that code and trust it, open it with SentenceTransformer(..., trust_remote_code=True)"
    )
