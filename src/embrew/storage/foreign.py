"""Check a model's folder of any origin before transformers or peft read it.

Neither `trust_remote_code=False` nor safetensors cover everything that these libraries do because a file says so: fetch
an attention kernel from the Hub, put an adapter on a model, read weights of another folder or pickled ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any, TypedDict, Unpack

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers.utils import cached_file

from embrew.files.formats import ENCODER, RUN
from embrew.files.names import is_safe_name
from embrew.files.reading import check_regular, content_of, read_json
from embrew.storage.gguf import gguf_files

INDEX, ADAPTER = "model.safetensors.index.json", "adapter_config.json"
OTHER_FILES = ("auto_mapping", "megatron_config", "corda_config", "lora_ga_config", "eva_config", "arrow_config")
"""Settings of a LoRA that make peft import other modules, or read other files, than the adapter's own."""
OTHER_WEIGHTS = ("transformers_weights", "variant", "gguf_file")
"""Settings that make transformers read other weights, or another index of weights, than those of the usual names."""

COUNT_KEY, MAX_COUNT = re.compile(r"(^|_)(layers?|experts|groups|blocks|stages)$"), 2048
"""Settings that say how many modules transformers makes one by one, and the largest number that is opened."""
NORMALIZER = re.compile(r'"normalizer"\s*:\s*(?=\{)')
MAX_LENGTHENING = 100  # times as long as a text, at most, that a tokenizer's replacements make it


class HubOptions(TypedDict, total=False):
    """Which files of a Hub model are read.

    Attributes:
        revision: branch, tag or commit.
        subfolder: folder within the model's.
        local_files_only: whether only cached files are read.
    """

    revision: str | None
    subfolder: str
    local_files_only: bool


def own_code(name: str) -> ValueError:
    """Return the error for a model or tokenizer that cannot be opened without running code of its folder."""
    return ValueError(
        f"{name} brings its own code, which is not run unasked; if you have read that code and trust it, give "
        "trust_remote_code=True to Encoder.from_pretrained, or set encoder.trust_remote_code=true in the recipe"
    )


def asks_for_code(error: Exception) -> bool:
    """Return whether an error of transformers says that a folder's own code would have to be run."""
    return "trust_remote_code" in str(error) or "custom code" in str(error)


def check_is_model(name: str, path: Path) -> None:
    """Raise where a path is a file of no model, or a folder that something else than a model was written to.

    Raises:
        ValueError: it is; `name` is what the message calls it; or a file is a pipe or a device.
    """
    check_regular(path)
    if not path.exists() or any((path / file).exists() for file in ("config.json", ADAPTER)) or gguf_files(path):
        return
    if path.is_file():
        raise ValueError(f"{name} is a file; give the folder of a model, a GGUF file, a Hub id, or a recipe (.yaml)")
    if not any((path / file).exists() for file in (ENCODER.file, RUN.file)):
        raise ValueError(
            f"{name} is not a model: the folder has no config.json; embrew runs {quote(str(path))} says what it holds"
        )


def check_hub_name(name: str, *, source: Path) -> None:
    """Raise unless a saved encoder's base is a name of the Hub, and not of a folder that happens to be here.

    Raises:
        ValueError: it is a path, or there is a folder of that name, which transformers would open in its place.
    """
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise ValueError(
            f"{source}: base {name!r} is not a model's name on the Hub (OWNER/NAME); the file is damaged or hostile: "
            "get the folder again from its source"
        ) from None
    if Path(name).exists():
        raise ValueError(
            f"{source} names the Hub model {name}, and here is a folder of that name, which would be opened in its "
            "place; run the command in another folder, or rename that one"
        )


def check_weights(name: str, source: str, *, kernels: bool = True, **options: Unpack[HubOptions]) -> None:
    """Raise where a folder or Hub model holds more than its own weights in safetensors files.

    Args:
        name: name of the model in errors.
        source: a folder or Hub id.
        kernels: refuse a configuration that asks for an attention kernel of the Hub.
        options: `revision`, for the Hub.

    Raises:
        ValueError: the folder also holds an adapter, or the index or the configuration names pickled files or files
            elsewhere.
    """
    if file_of(source, ADAPTER, **options) is not None:
        raise ValueError(
            f"{name} holds {ADAPTER}: an adapter on another model. transformers would open both; embrew opens whole "
            "models: merge the adapter into its base and save that (peft's merge_and_unload)"
        )
    check_index(name, source, **options)
    check_settings(name, source, "config.json", kernels=kernels, **options)


def check_settings(name: str, source: str, *files: str, kernels: bool = True, **options: Unpack[HubOptions]) -> None:
    """Raise where a model's configuration names other weights than its own, or a kernel of the Hub.

    An index of another name may list pickled files, which transformers reads although `use_safetensors` is given. A
    kernel is compiled code.

    Args:
        name: name of the model in errors.
        source: a folder or Hub id.
        files: names of the JSON files to look in.
        kernels: also look for attention kernels.
        options: `revision` and `subfolder`.

    Raises:
        ValueError: it does.
    """
    for file in files:
        path = file_of(source, file, **options)
        for keys, value in () if path is None else _entries(read_json(Path(path))):
            key = next((key for key in keys if key in OTHER_WEIGHTS), None)
            is_usual = key == "transformers_weights" and is_safe_name(value) and value.endswith(".safetensors")
            if key is not None and value is not None and not is_usual:
                raise ValueError(
                    f"{name}: its {file} asks for other weights ({key}: {str(value)[:80]!r}); embrew reads "
                    f".safetensors files by their usual names: remove {key}, and save the weights as model.safetensors"
                )
            named = any(key.removeprefix("_").startswith("attn_implementation") for key in keys)
            if kernels and named and isinstance(value, str) and "/" in value:
                raise ValueError(
                    f"{name}: its {file} asks for the attention kernel {value[:80]!r} of the Hub, which is code and is "
                    "not run unasked; remove it there, or choose a kernel yourself (attn_implementation: sdpa)"
                )


def _entries(values: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values in a configuration and in those within it, each with the keys that lead to it."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _entries(value, (*keys, key))
    else:
        yield keys, values


def check_counts(name: str, source: str, **options: Unpack[HubOptions]) -> None:
    """Raise where a configuration has more layers or experts than a model that can be opened.

    Raises:
        ValueError: it has; transformers would take hours and all memory to make them.
    """
    path = file_of(source, "config.json", **options)
    for keys, value in () if path is None else _entries(read_json(Path(path))):
        if isinstance(value, int) and value > MAX_COUNT and COUNT_KEY.search(keys[-1]):
            raise ValueError(
                f"{name}: its config.json has {'.'.join(keys)}={value:,}; models of up to {MAX_COUNT:,} are opened: "
                "get config.json again from where the model came from"
            )


def check_normalizer(name: str, source: str, **options: Unpack[HubOptions]) -> None:
    """Raise where replacements in `tokenizer.json` make a text many times as long.

    Raises:
        ValueError: they do.
    """
    path = file_of(source, "tokenizer.json", **options)
    text = "" if path is None else Path(path).read_text(encoding="utf-8", errors="replace")
    for match in NORMALIZER.finditer(text):
        with content_of(Path(str(path))):
            longer = _longer(json.JSONDecoder().raw_decode(text, match.end())[0])
        if longer > MAX_LENGTHENING:
            raise ValueError(
                f"{name}: the normalizer of its tokenizer.json makes a text up to {longer:,} times as long; allowed "
                f"are {MAX_LENGTHENING}: get the file again from where the model came from"
            )


def _longer(normalizer: Any) -> int:
    """Return how many times as long replacements make a text, at most."""
    product = 1
    for part in normalizer.get("normalizers", ()) if isinstance(normalizer, dict) else ():
        product *= _longer(part)
    if isinstance(normalizer, dict):
        product *= max(1, len(normalizer.get("content") or ""), len(normalizer.get("prepend") or ""))
    return product


def check_index(name: str, source: str, **options: Unpack[HubOptions]) -> None:
    """Raise if the index of split weights names files that are not safetensors files of its folder.

    Raises:
        ValueError: it does, or it cannot be read.
    """
    index = file_of(source, INDEX, **options)
    if index is None:
        return
    try:
        files = sorted({str(file) for file in read_json(Path(index))["weight_map"].values()})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: {INDEX} cannot be read ({error!r}); get the folder again from its source") from None
    foreign = next((file for file in files if not is_safe_name(file) or not file.endswith(".safetensors")), None)
    if foreign is not None:
        raise ValueError(
            f"{name}: {INDEX} names {foreign[:80]!r}; embrew reads .safetensors files of the model's own folder only, "
            "and no pickled weights"
        )


def file_of(source: str, name: str, **options: Unpack[HubOptions]) -> str | None:
    """Return the path of a file of a folder or Hub model; None where it has none, or the Hub cannot be asked."""
    if Path(source).exists():
        path = Path(source) / options.get("subfolder", "") / name
        return str(path) if path.is_file() else None
    try:
        validate_repo_id(source)
    except HFValidationError:
        return None
    return cached_file(
        source,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **options,
    )


def check_adapter(config: Any, *, source: Path) -> None:
    """Raise unless an adapter's configuration is a LoRA that needs no other files.

    Raises:
        ValueError: another kind of adapter, or one whose settings name other files or modules.
    """
    if not isinstance(config, dict) or str(config.get("peft_type")).upper() != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{source}: peft_type {str(kind)[:40]!r}; embrew opens adapters of type LORA only")
    named = next((key for key in OTHER_FILES if config.get(key)), None)
    if named is not None:
        raise ValueError(
            f"{source}: {named} names other modules or files, which are not opened unasked; an adapter that embrew "
            "saved has none: get the folder again from its source"
        )


def check_not_quantized(name: str, config: Any, *, quantization: bool) -> None:
    """Raise where a model is stored in blocks of bitsandbytes, or is quantised already and shall be again.

    Raises:
        ValueError: it is.
    """
    key = "quantization_config"
    stored = config.get(key) if isinstance(config, dict) else getattr(config, key, None)
    if stored is None:
        return
    values = stored if isinstance(stored, dict) else vars(stored)
    method = str(values.get("quant_method") or "")
    in_blocks = method.endswith("bitsandbytes") or values.get("load_in_4bit") or values.get("load_in_8bit")
    if quantization or in_blocks:
        raise ValueError(
            f"{name} is stored quantised ({method or 'quantization_config in its config.json'}); give the original "
            "model, which has weights of 16 or 32 bits, and quantization: nf4 (encoder.quantization in a recipe)"
        )
