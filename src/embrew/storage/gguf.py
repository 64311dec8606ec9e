"""GGUF files as base models: which files a path names, and how transformers opens them as plain float weights."""

from __future__ import annotations

import importlib
import importlib.util
import io
import logging
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import normalizers
from transformers import PreTrainedTokenizerBase

from embrew.files.reading import broken, is_content_error

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


def complete_tokenizer(tokenizer: PreTrainedTokenizerBase, files: Sequence[Path]) -> PreTrainedTokenizerBase:
    """Add what a GGUF file does not say about a tokenizer; warn where its words may be split in another way.

    Raises:
        ValueError: transformers lost tokens that are found in texts before they are split, such as runs of spaces.
    """
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
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
    words = about.get("tokenizer.ggml.pre")
    if words in NFC:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    elif about.get("tokenizer.ggml.model") == "gpt2" and words not in (*GGUF_PRE_TOKENIZER_SPLITS, *GPT2_WORDS):
        logger.warning(
            "%s: its tokenizer splits texts by the rule %r, which is not known here; GPT-2's is used, so that some "
            "texts may get other tokens than in the original model",
            files[0].name,
            words,
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
