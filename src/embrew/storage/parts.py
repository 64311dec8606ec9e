"""Parts of an encoder's folder: checksums compared first, tensors, adapters, the tokenizer, contexts."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from embrew.files.checksums import NAME, UNSEALED, check_files, check_sealed_file, seal_file, write_checksums
from embrew.files.formats import CONTEXT, ENCODER, EXPORT, Format
from embrew.files.names import MAX_NAME_BYTES
from embrew.files.reading import REPAIR, BrokenFile, broken, check_regular, content_of, is_content_error, read_json
from embrew.files.writing import PARTIAL, atomic_folder, atomic_path, read_unchanged, recover_all, write_json
from embrew.identity import vectors_hash
from embrew.model.adapters import AdapterState
from embrew.model.context_vectors import prepare_context
from embrew.model.contexts import Context, PreparedContext
from embrew.model.encoder_module import EncoderModule
from embrew.settings.encoder import Demonstration
from embrew.storage.foreign import ADAPTER, asks_for_code, check_adapter
from embrew.text.tokens import Row

logger = logging.getLogger(__name__)

BASE = "base"  # a base without a public name, in an encoder's folder
LOOKED_UP = frozenset(
    {
        # these make it a folder of another kind
        *("embrew.json", "run.json"),
        # models: another configuration, an adapter on the weights, a single file in place of shards
        *("config.json", "generation_config.json", "adapter_config.json"),
        *("model.safetensors", "model.safetensors.index.json", "memory.safetensors"),
        # tokenizers: more tokens, other special tokens
        *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "added_tokens.json", "special_tokens_map.json"),
        # Sentence-Transformers: a processor in place of the tokenizer
        *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    }
)
"""Names that embrew, transformers and Sentence-Transformers look for in a folder, and that change what they open."""


def check_folder(folder: Path, *, large: bool = True) -> bool:
    """Compare the files of an encoder, a context or an export with its checksums; warn once if it has none.

    Args:
        folder: folder to check.
        large: also the files of 16 MiB or more, which a process reads once.

    Returns:
        Whether they were compared.

    Raises:
        OtherFormat: it has another format number than this embrew reads, or none.
        Damaged: a file has changed, is missing or was added.
        BrokenFile: a file is a pipe or a device.
    """
    check_regular(folder, below="**/*")
    check_number(folder, ENCODER if (folder / ENCODER.file).is_file() else EXPORT)
    verified = check_files(folder, read=LOOKED_UP, large=large)
    if not verified:
        _warn_unverified(folder.resolve())
    return verified


def check_number(folder: Path, kind: Format) -> None:
    """Raise if a file of a folder has another format number than this embrew reads; damage is for `check_folder`."""
    with suppress(OSError, BrokenFile):
        read_json(folder / kind.file, kind=kind)


@cache
def _warn_unverified(folder: Path) -> None:
    """Log it once for a folder."""
    logger.warning("%s has no %s, so damage to its files is not detected; save it again to add one", folder, NAME)


def write_tensors(
    path: Path, tensors: dict[str, Tensor], *, metadata: Mapping[str, str] | None = None, sealed: bool = True
) -> None:
    """Write a safetensors file atomically; a sealed one has the sha256 of the rest of it in its metadata."""
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={**(metadata or {}), **UNSEALED} if sealed else dict(metadata or {}))
        if sealed:
            seal_file(temporary, path.name)


def read_tensors(
    path: Path, *, keys: Collection[str] = (), repair: str = REPAIR, sealed: bool = False
) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, on the CPU.

    Args:
        path: the file.
        keys: names of tensors that it has to hold.
        repair: advice to the user about a broken file.
        sealed: whether it holds the sha256 of the rest of it, which is compared.

    Raises:
        OSError: there is no such file, it is a folder, or it may not be read.
        BrokenFile: its content is truncated, damaged, has changed, or lacks a tensor.
    """
    check_regular(path)
    path.open("rb").close()  # whose errors name the file, unlike safetensors'
    with content_of(path, repair=repair):
        if sealed:
            check_sealed_file(path)
        tensors = load_file(path)
        missing = [key for key in keys if key not in tensors]
        if missing:
            raise ValueError(f"it has no tensor {', '.join(missing)}")
    return tensors


TENSORS = "adapter_model.safetensors"


def write_adapter(state: AdapterState, folder: Path) -> None:
    """Write both files into a new folder."""
    folder.mkdir(parents=True)
    save_file(state.tensors, folder / TENSORS, metadata={"format": "pt"})
    (folder / ADAPTER).write_text(json.dumps(state.config, indent=2, sort_keys=True))


def read_adapter(folder: Path) -> AdapterState:
    """Read both files.

    Raises:
        ValueError: it is no LoRA, or one whose settings name other files or modules.
    """
    config = read_json(folder / ADAPTER)
    check_adapter(config, source=folder / ADAPTER)
    return AdapterState(config, read_tensors(folder / TENSORS))


GENERIC = "TokenizersBackend"  # reads tokenizer.json unchanged; other classes rebuild parts of it when they are loaded
REBUILDING_SETTINGS = ("add_bos_token", "add_eos_token")  # would replace the post-processor of tokenizer.json
CALL_SETTINGS = (
    "max_length",
    "stride",
    "truncation_strategy",
    "pad_to_multiple_of",
)  # of an earlier call, not of the tokenizer
CODE = "auto_map"  # of the class that it was opened with; the generic one needs no code
CLASS_SETTINGS = ("model_input_names", "padding_side", "truncation_side")  # where it sets them, they are not saved
PROBES = (
    "A plain sentence.",
    "  two spaces before,\n\ttwo between  and a tab\t",
    "naïve café; nai\u0308ve ﬁ ½ 今日は 🦆",
    "</s> <s> <|endoftext|> [INST] <unk>",
    "",
)


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer as its `tokenizer.json` alone; `check_tokenizer` compares what is reopened.

    Some classes (GPT-NeoX's) rebuild their post-processor, normaliser or pre-tokenizer when they are loaded, from
    incomplete settings. The generic class reads the file unchanged.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if key not in (*REBUILDING_SETTINGS, *CALL_SETTINGS, CODE)}
    config |= {"tokenizer_class": GENERIC, **{name: getattr(tokenizer, name) for name in CLASS_SETTINGS}}
    write_json(path, config)


def open_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Open the tokenizer of a folder that embrew wrote; code is never run for it.

    Raises:
        BrokenFile: its files are missing or broken.
        ValueError: it asks for code of the folder, which no tokenizer written here does.
    """
    read_json(folder / "tokenizer_config.json", keys=("tokenizer_class",))  # without it another one is opened
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        if not asks_for_code(error) and is_content_error(error, also=(OSError,)):
            raise broken(folder, error) from error
        if not asks_for_code(error):
            raise
        raise ValueError(
            f"the tokenizer of {folder} brings its own code, which is not run; a folder that embrew saved has none: "
            "get it again from its source"
        ) from error
    return tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Compare the tokenizer in a folder, reopened, with the one in memory.

    Raises:
        RuntimeError: it gives other tokens, other inputs, or has other special tokens.
    """
    reopened = open_tokenizer(folder)
    what = f"the tokenizer written to {folder.name} is reopened as {type(reopened).__name__} and"
    for text in PROBES:
        ours, theirs = tokenizer(text), reopened(text)
        if ours["input_ids"] != theirs["input_ids"]:
            where = first_difference(ours["input_ids"], theirs["input_ids"], tokenizer)
            raise RuntimeError(f"{what} gives other tokens for {text!r}: {where}")
        if ours.keys() != theirs.keys():
            raise RuntimeError(f"{what} gives {sorted(theirs)}, the one in memory gives {sorted(ours)}")
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "padding_side"):
        if getattr(tokenizer, name) != getattr(reopened, name):
            raise RuntimeError(f"{what} has {name}={getattr(reopened, name)}, not {getattr(tokenizer, name)}")


def first_difference(expected: Sequence[int], actual: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Describe the first index at which two lists of token ids differ, with the tokens.

    >>> first_difference([5, 7], [5], tokenizer)  # doctest: +SKIP
    'index 1 of 2: expected 7 (▁a), given nothing (1 token)'
    """

    def named(i: int | None) -> str:
        return "nothing" if i is None else f"{i} ({tokenizer.convert_ids_to_tokens(i)})"

    pairs = enumerate(zip_longest(expected, actual))
    index, (wanted, other) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
    return f"index {index} of {len(expected)}: expected {named(wanted)}, given {named(other)} ({len(actual)} tokens)"


CONTEXTS, VECTORS = "contexts", "vectors.safetensors"
ADD_AGAIN = "remove the context's folder and add it again (embrew context add)"
CONTEXT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # no files on Windows


def check_name(name: str) -> None:
    """Raise unless a name can be that of a folder, on any system, and of a prompt."""
    if not CONTEXT_NAME.fullmatch(name) or name.endswith("."):
        raise ValueError(f"context {name[:80]!r}: a name is letters, digits, and _ . - between them")
    if DEVICE.fullmatch(name) or len(name) > MAX_NAME_BYTES:
        raise ValueError(
            f"context {name[:80]!r}: folders cannot be called so on every system; choose a name of up to "
            f"{MAX_NAME_BYTES} characters that is no device of Windows (con, nul, com1, …)"
        )


def _folder_of(folder: Path, name: str) -> Path:
    """Return the folder of a context. It is written and removed there, so a link that leads elsewhere is refused."""
    contexts_folder = folder / CONTEXTS
    if contexts_folder.is_symlink() or (contexts_folder / name).is_symlink():
        raise ValueError(
            f"{contexts_folder / name} is a link, or below one; contexts are written and removed within the model's "
            "own folder: replace the link by a copy of what it leads to"
        )
    return contexts_folder / name


def write_context(folder: Path, name: str, context: PreparedContext, *, overwrite: bool = False) -> None:
    """Write one context into an encoder's folder atomically.

    Raises:
        FileExistsError: there is one of this name already, and `overwrite` is not set.
        ValueError: not a name.
    """
    check_name(name)
    target = _folder_of(folder, name)
    source = context.context
    about: dict[str, Any] = {
        "format": CONTEXT.number,
        "instruction": source.instruction,
        "passage_instruction": source.passage_instruction,
        "demonstrations": [pair._asdict() for pair in source.demonstrations],
        "ids": context.row.ids,
        "segments": context.row.segments,
        "model_hash": context.model_hash,
    }
    with atomic_folder(target, marker=CONTEXT.file, overwrite=overwrite) as out:
        save_file({"vectors": context.vectors.contiguous()}, out / VECTORS)
        write_json(out / CONTEXT.file, about)
        write_checksums(out)  # separate, so that adding a context does not change those of the encoder


def read_contexts(folder: Path) -> dict[str, PreparedContext]:
    """Return the contexts in an encoder's folder, by name, sorted.

    Raises:
        ValueError: one is damaged, cannot be read, or has another format number.
    """
    recover_all(folder / CONTEXTS)
    contexts = {}
    for context_folder in context_folders(folder):
        context = read_unchanged(context_folder, CONTEXT.file, partial(read_context, context_folder))
        if context is not None:
            contexts[context_folder.name] = context
    return contexts


def context_folders(folder: Path) -> list[Path]:
    """Return folders of contexts; others, and those that are being written, are left out."""
    paths = sorted((folder / CONTEXTS).iterdir()) if (folder / CONTEXTS).is_dir() else []
    files = (CONTEXT.file, VECTORS, NAME)
    return [path for path in paths if not path.name.startswith(".") and any((path / name).is_file() for name in files)]


def read_context(folder: Path) -> PreparedContext | None:
    """Return one context; None if it was removed at the same time."""
    if not folder.is_dir():
        return None
    check_number(folder, CONTEXT)
    if (folder / NAME).is_file() or (folder.parent.parent / NAME).is_file():
        check_folder(folder)
    about = folder / CONTEXT.file
    read = read_json(about, repair=ADD_AGAIN, kind=CONTEXT)
    vectors = read_tensors(folder / VECTORS, keys=("vectors",), repair=ADD_AGAIN)["vectors"]
    with content_of(about, repair=ADD_AGAIN):
        pairs = tuple(Demonstration(**pair) for pair in read["demonstrations"])
        context = Context(read["instruction"], pairs, read["passage_instruction"])
        row = Row(list(read["ids"]), list(read["segments"]))
        return PreparedContext(context, row, vectors, read["model_hash"])


def remove_context(folder: Path, name: str) -> None:
    """Remove one context from an encoder's folder, damaged or not.

    Raises:
        FileNotFoundError: there is none of this name.
    """
    check_name(name)
    target = _folder_of(folder, name)
    if target not in context_folders(folder):
        names = ", ".join(path.name for path in context_folders(folder)) or "none"
        raise FileNotFoundError(f"{folder} has no context {name}; it has {names}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}.", suffix=PARTIAL) as scratch:
        target.rename(Path(scratch) / "removed")  # gone at once, then deleted; after a kill, by the next reader
        shutil.rmtree(Path(scratch) / "removed", ignore_errors=True)
    with suppress(OSError):  # others are in it
        target.parent.rmdir()


def current_contexts(encoder: EncoderModule) -> dict[str, PreparedContext]:
    """Return the encoder's contexts; those of other weights or another tokenizer are computed again."""
    if not encoder.contexts:
        return {}
    current_hash = vectors_hash(encoder)
    contexts = {}
    for name, context in list(encoder.contexts.items()):
        if context.model_hash != current_hash:
            context = replace(prepare_context(encoder, context.context), model_hash=current_hash)
        contexts[name] = context
    return contexts


def context_sha256(context: PreparedContext) -> str:
    """Return sha256 of a context's instruction, positions and vectors."""
    sha = hashlib.sha256(json.dumps([context.context.instruction, *context.row]).encode())
    sha.update(context.vectors.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def check_written_contexts(encoder: EncoderModule, folder: Path) -> None:
    """Raise unless a folder holds the encoder's contexts, to the bit."""
    written = read_contexts(folder)
    if written.keys() != encoder.contexts.keys():
        raise RuntimeError(f"contexts {', '.join(sorted(written.keys() ^ encoder.contexts.keys()))}: not the encoder's")
    for name, context in encoder.contexts.items():
        same = written[name].context == context.context and context_sha256(written[name]) == context_sha256(context)
        if not same:
            raise RuntimeError(f"context {name} was written with other values than the encoder has")
