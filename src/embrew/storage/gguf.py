"""GGUF files as base models: which files a path names, and how transformers opens them as plain float weights.

Converting a file takes longer than everything else when a small model is opened, so the converted model is kept in the
user's cache (`keep_conversion`), and opened from there as any folder is.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from embrew.files.checksums import NAME, content_hash, file_sha256, is_intact, write_checksums
from embrew.files.names import user_cache
from embrew.files.reading import broken, is_content_error
from embrew.files.writing import atomic_folder

logger = logging.getLogger(__name__)

PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""Name of one file of a split model, as llama.cpp's `gguf-split` writes it."""
PROJECTOR = "mmproj"  # begins the names of files with the vision or audio part of a model
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
REPAIR = "the file is truncated, damaged, or no GGUF file: download it again"
EMBREW_PREFIX = "embrew."  # begins the keys that our exports for llama.cpp hold
TOKENS, USER_DEFINED = "tokenizer.ggml.tokens", 4
NFC = ("qwen2", "deepseek-r1-qwen", "qwen35")
"""Pre-tokenizers (`tokenizer.ggml.pre`) of tokenizers that normalise texts to NFC; a GGUF file does not say so."""
CACHE_SHARE = 10  # a conversion is kept where it takes at most a tenth of the disk's free bytes
GPT2_WORDS = ("gpt-2", "gpt2", "phi-2", "smollm", "starcoder", "refact", "olmo", "exaone4", "default")
"""Pre-tokenizers that split texts as GPT-2 does, or by digits too, where no merge joins digits."""


def gguf_files(path: Path) -> tuple[Path, ...]:
    """Return the GGUF file that a path names, or all parts of a split model; empty: it names something else.

    Args:
        path: a `.gguf` file, any part of a split model, or a folder that holds one model and no safetensors weights.

    Raises:
        FileNotFoundError: a part of a split model is missing.
        ValueError: a folder holds several models.
    """
    if path.is_dir():
        inside = sorted(file for file in path.glob("*.gguf") if not file.name.startswith(PROJECTOR))
        if not inside or any(path.glob("*.safetensors")):
            return ()
        models = sorted({match["stem"] if (match := PART.fullmatch(file.name)) else file.name for file in inside})
        if len(models) > 1:
            raise ValueError(f"{path} holds {len(models)} GGUF models ({', '.join(models)}); give the path of one file")
        path = inside[0]
    if path.suffix != ".gguf" or not path.is_file():
        return ()
    part = PART.fullmatch(path.name)
    if part is None:
        return (path,)
    count = int(part["count"])
    parts = [path.with_name(f"{part['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    missing = [file.name for file in parts if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"{path} is one of {count} parts, and {missing[0]} is missing in {path.parent}")
    return tuple(parts)


@contextmanager
def gguf_arguments(name: str, files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield transformers' arguments to open a GGUF model's configuration, weights or tokenizer; name what is wrong.

    Args:
        name: name of the model in errors.
        files: files that `gguf_files` returns.

    Raises:
        ImportError: the package gguf is not installed.
        ValueError: a file is damaged, of an architecture that transformers cannot convert, or was exported by embrew.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ImportError(f'{name} is a GGUF file, which is read with the gguf package: pip install "embrew[gguf]"')
    about = metadata(files)
    if any(key.startswith(EMBREW_PREFIX) for key in about):
        raise ValueError(
            f"{name} is an export of embrew for llama.cpp, with its tokenizer in llama.cpp's form; give the encoder's "
            "folder that it was made of"
        )
    architecture = about["general.architecture"]
    try:
        with _read_once(), redirect_stderr(io.StringIO()):  # of progress bars that cannot be switched off
            file = files[0] if len(files) == 1 else _joined(tuple(files))
            yield {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    except Exception as error:
        if not is_content_error(error, also=(ImportError, OSError, RuntimeError)):
            raise
        if "not supported" in str(error) or "Unrecognized" in str(error):
            raise ValueError(
                f"{name} is a GGUF file of the architecture {architecture!r}, which transformers does not convert; "
                "give the Hugging Face folder or Hub id that it was made of"
            ) from error
        raise broken(files[0], error, repair=REPAIR) from error


@contextmanager
def _read_once() -> Iterator[None]:
    """Within this context, gguf parses a file once per process, which takes seconds; transformers asks twice."""
    gguf: Any = importlib.import_module("gguf")
    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader = lambda path, *_: _reader(Path(path), Path(path).stat().st_mtime_ns)
    gguf.get_tensor_name_map = _tensor_names
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, names


@lru_cache(maxsize=1)
def _reader(file: Path, _written: int) -> Any:
    from gguf.gguf_reader import GGUFReader

    return GGUFReader(file)


@cache
def _tensor_names(architecture: Any, layers: int) -> Any:
    from gguf.tensor_mapping import get_tensor_name_map

    return get_tensor_name_map(architecture, layers)


def metadata(files: Sequence[Path]) -> dict[str, Any]:
    """Return the metadata in a GGUF model's first file; arrays of strings are left out.

    Raises:
        BrokenFile: it is no GGUF file, or a damaged one.
    """
    return _metadata(files[0], files[0].stat().st_mtime_ns)


@cache
def _metadata(file: Path, _written: int) -> dict[str, Any]:
    from transformers.integrations.gguf.reader import read_gguf_metadata

    try:
        return read_gguf_metadata(str(file))[0]
    except Exception as error:  # of struct, numpy, and of codecs
        raise broken(file, error, repair=REPAIR) from error


def quantization_type(files: Sequence[Path]) -> str | None:
    """Return the name of a GGUF model's weight type, such as `Q4_K_M`; None where the file does not say."""
    from gguf import LlamaFileType

    try:
        return LlamaFileType(metadata(files)["general.file_type"]).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except (KeyError, ValueError):
        return None


def conversion_of(files: Sequence[Path]) -> Path | None:
    """Return the folder in the user's cache that holds a GGUF model converted; None: there is none that is intact."""
    folder = user_cache() / "gguf" / _conversion_name(*((file, file.stat().st_mtime_ns) for file in files))
    return folder if (folder / NAME).is_file() and is_intact(folder) else None


@cache
def _conversion_name(*files: tuple[Path, int]) -> str:
    """Return the name under which files, with their time of change, are kept: of contents and of the converter."""
    paths = [file for file, _ in files]
    contents = file_sha256(paths[0], cached=True) if len(paths) == 1 else content_hash(paths)
    return f"{contents[:32]}-transformers-{transformers.__version__}"


def keep_conversion(files: Sequence[Path], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Keep a GGUF model that was opened in float32 in the user's cache, so that it is not converted again.

    It is not kept where the weights have another dtype, where it would take more than a tenth of the free disk, where
    the tokenizer's rule is not known (which is to be said each time), or where the tokenizer reads back otherwise. A
    cache that cannot be written is no error.

    Args:
        files: files that `gguf_files` returns.
        model: the model with all of its weights, as converted.
        tokenizer: its tokenizer, completed.
    """
    if model.dtype != torch.float32 or _unknown_word_rule(files) is not None:
        return
    folder = user_cache() / "gguf" / _conversion_name(*((file, file.stat().st_mtime_ns) for file in files))
    with suppress(OSError):  # FileExistsError among them: another process keeps it at this moment
        folder.parent.mkdir(parents=True, exist_ok=True)
        size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        if size > shutil.disk_usage(folder.parent).free / CACHE_SHARE:
            return
        with atomic_folder(folder, marker=NAME, overwrite=True) as new:
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
            again = AutoTokenizer.from_pretrained(new, trust_remote_code=False)
            if _all_of(again) != _all_of(tokenizer):
                raise OSError(f"{files[0].name}: its tokenizer reads back otherwise")
            write_checksums(new)
        logger.info("%s was converted; the weights are kept in %s (embrew cache --clear)", files[0].name, folder)


def _all_of(tokenizer: Any) -> tuple[Any, ...]:
    """Return all that the tokens of a text, and a chat, depend on."""
    return tokenizer.backend_tokenizer.to_str(), tokenizer.special_tokens_map, tokenizer.chat_template


def _unknown_word_rule(files: Sequence[Path]) -> str | None:
    """Return the name of a tokenizer's rule to split texts, if it is not known here."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    about = metadata(files)
    rule, rules = about.get("tokenizer.ggml.pre"), (*NFC, *GGUF_PRE_TOKENIZER_SPLITS, *GPT2_WORDS)
    return rule if about.get("tokenizer.ggml.model") == "gpt2" and rule not in rules else None


def complete_tokenizer(tokenizer: PreTrainedTokenizerBase, files: Sequence[Path]) -> PreTrainedTokenizerBase:
    """Add what a GGUF file does not say about a tokenizer; warn where its words may be split in another way.

    Raises:
        ValueError: transformers lost tokens that are found in texts before they are split, such as runs of spaces.
    """
    from transformers.integrations.gguf.reader import read_gguf_metadata

    about = read_gguf_metadata(str(files[0]), (TOKENS,))[0]
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    kinds = zip(about[TOKENS], about.get("tokenizer.ggml.token_type", ()), strict=False)
    lost = [token for token, kind in kinds if kind == USER_DEFINED and token not in added]
    if lost:
        raise ValueError(
            f"{files[0].name}: its tokenizer finds {lost[0]!r} in texts as one token, and the converted one does "
            "not; give the Hugging Face folder or Hub id that the file was made of"
        )
    if about.get("tokenizer.ggml.pre") in NFC:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    elif (rule := _unknown_word_rule(files)) is not None:
        logger.warning(
            "%s: its tokenizer splits texts by the rule %r, which is not known here; GPT-2's is used, so that some "
            "texts may get other tokens than in the original model",
            files[0].name,
            rule,
        )
    return tokenizer


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # of joined files, until the process ends


@cache
def _joined(files: tuple[Path, ...]) -> Path:
    """Return one GGUF file with the tensors of all parts, which transformers does not read one by one."""
    from gguf import GGUFReader, GGUFWriter
    from gguf.scripts.gguf_new_metadata import copy_with_new_metadata

    readers = [GGUFReader(file) for file in files]
    joined = readers[0]
    joined.tensors = [tensor for reader in readers for tensor in reader.tensors]
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="embrew-gguf-"))
    path = Path(_FOLDERS[-1].name) / "model.gguf"
    writer = GGUFWriter(path, metadata(files)["general.architecture"])
    copy_with_new_metadata(joined, writer, {}, SPLIT_KEYS)
    return path
