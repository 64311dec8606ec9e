"""Settings of a server: its model and its limits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embrew.text_encoder.precision import Ranges

KEY = "EMBREW_API_KEY"
MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What a server accepts at most. A request beyond them is refused at once.

    Attributes:
        body_bytes: size of a request's body.
        bodies_bytes: size of all bodies that are held in memory at one time.
        items: texts per request.
        characters: characters (or token ids) per text, which is tokenised as a whole also where it is truncated. None:
            100,000, or 8 per token of the longest limit if that is more.
        queued_tokens: tokens that wait or are being computed; a larger request is accepted where none wait. None: 16
            times `batch_tokens`.
        concurrent: requests at one time.
        timeout: seconds until a request that was not computed is given up.
        body_timeout: seconds for a client to send its body.
        drain: seconds for requests to finish once the server is told to stop.
    """

    body_bytes: int = 8 * MIB
    bodies_bytes: int = 64 * MIB
    items: int = 2048
    characters: int | None = None
    queued_tokens: int | None = None
    concurrent: int = 512
    timeout: float = 300.0
    body_timeout: float = 20.0
    drain: float = 30.0


@dataclass(frozen=True)
class Settings:
    """A server's model and how it is run.

    Attributes:
        model: folder, recipe or Hub id, as `open_model` takes it.
        backend: `torch` or `openvino`.
        dtype: `auto`, `float32` or `bfloat16`.
        pooling: of a language model without embedding settings, as `open_model` takes it.
        name: what clients call the model; None: the last part of `model`.
        keys: API keys, one of which a request needs; none: no key is needed.
        auto_truncate: whether texts beyond the limit are truncated where a request does not say.
        default_prompt_name: prompt or context where a request names none; None: the model's own default.
        batch_tokens: padded tokens per forward pass; None: 2,048 on a CPU, 16,384 on a GPU.
        prefix_bytes: memory for the keys and values of prompts.
        workers: processes that compute; 1: a thread of this process.
        devices: one per worker, such as `cuda:0`; none: the default device.
        tokenizers: threads that tokenise.
        ranges: of int8 codes; None: `precision: int8` is not offered.
        ranges_of: what the vectors with these ranges were made of (`Manifest.made_of`); None: it is not compared.
        limits: of requests.
    """

    model: str
    backend: str = "torch"
    dtype: str = "auto"
    pooling: str | None = None
    name: str | None = None
    keys: tuple[str, ...] = field(default=(), repr=False)
    auto_truncate: bool = True
    default_prompt_name: str | None = None
    batch_tokens: int | None = None
    prefix_bytes: int = 256 * MIB
    workers: int = 1
    devices: tuple[str, ...] = ()
    tokenizers: int = 2
    ranges: Ranges | None = None
    ranges_of: Mapping[str, Any] | None = None
    limits: Limits = Limits()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model in requests: its short name, and what the server was started with."""
        return tuple(dict.fromkeys((self.name or self.model.rstrip("/").rpartition("/")[2], self.model)))


def read_keys(file: Path | None) -> tuple[str, ...]:
    """Return the API keys of a file, one per line, or that of the environment; none: no key is needed.

    Raises:
        ValueError: the file holds none, or a header cannot hold one.
    """
    where = KEY if file is None else str(file)
    text = os.environ.get(KEY, "") if file is None else file.read_bytes().decode("utf-8-sig", errors="replace")
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if file is not None and not keys:
        raise ValueError(f"{where} holds no API key; write one per line")
    for number, key in enumerate(keys, 1):
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ValueError(f"API key {number} of {where} cannot be sent in a header; use ASCII without spaces")
    return keys


def read_ranges(folder: Path | None) -> tuple[Ranges | None, Mapping[str, Any] | None]:
    """Return the ranges of int8 codes that a folder of vectors was written with, and what these were made of.

    Raises:
        ValueError: its vectors are no int8 codes.
    """
    if folder is None:
        return None, None
    from embrew.corpus import read_vectors

    found = read_vectors(folder)
    if found.ranges is None:
        raise ValueError(f"{folder} has no int8 ranges; make it with `embrew encode --precision int8`")
    return found.ranges, found.manifest.made_of
