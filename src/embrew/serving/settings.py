"""Settings of a server: its model and its limits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from embrew.corpus.job import Ranges

KEY = "EMBREW_API_KEY"
MIB = 2**20


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Settings:
    """A server's model, how it is run, and the limits of this process. A request beyond a limit is refused at once.

    Attributes:
        model: folder, recipe or Hub id, as `open_model` takes it.
        backend: `torch` or `openvino`.
        dtype: `auto`, `float32` or `bfloat16`.
        pooling: of a language model without embedding settings, as `open_model` takes it.
        served_model_name: name of the model in requests; by default that of its folder.
        api_key_file: file with one API key per line; without it, EMBREW_API_KEY of the environment.
        auto_truncate: truncate texts beyond the limit, where a request does not say; or refuse them with 422.
        default_prompt_name: prompt or context for requests that name none; by default the model's own.
        encoder (NAME=DIR): an encoder to serve by name, with MODEL as the language model that all of them were trained
            on, in memory once. Repeatable.
        encoder_folder: folder whose subfolders requests may load as encoders; without it, none.
        max_encoders: encoders that may be loaded at one time.
        chat: answer chats as MODEL itself, a language model.
        chat_template: file with a Jinja template of chats, in place of the tokenizer's.
        max_chats: answers that are written at one time; further chats wait.
        max_answer_tokens: tokens of an answer, at most, and where a request does not say.
        int8_ranges: folder of vectors by `embrew encode --precision int8`, whose ranges are used for int8.
        max_batch_tokens: tokens per batch, with padding; by default 16384 on a GPU, 2048 on a CPU.
        prefix_bytes: memory for the keys and values of prompts.
        payload_limit: size of a request's body, before 413.
        bodies_bytes: size of all bodies that are held in memory at one time.
        max_client_batch_size: texts per request, before 413.
        max_text_characters: characters (or token ids) per text, before 413: a text is tokenised before it is truncated.
            By default 100000, or 8 per token of the longest limit if that is more.
        max_queued_tokens: tokens that wait or are computed, before 429, unless none wait; by default those of 16
            batches.
        max_concurrent_requests: requests at one time, before 429.
        timeout: seconds until a request that was not computed is given up with 503.
        body_timeout: seconds for a client to send its body.
        drain: seconds for requests to finish once the server is told to stop.
    """

    model: str
    backend: str = "torch"
    dtype: str = "auto"
    pooling: str | None = None
    served_model_name: str | None = None
    api_key_file: Path | None = None
    auto_truncate: bool = True
    default_prompt_name: str | None = None
    encoder: Sequence[str] = ()
    encoder_folder: Path | None = None
    max_encoders: int = 16
    chat: bool = False
    chat_template: Path | None = None
    max_chats: int = 4
    max_answer_tokens: int = 1024
    int8_ranges: Path | None = None
    max_batch_tokens: int | None = None
    prefix_bytes: int = 256 * MIB
    payload_limit: int = 8 * MIB
    bodies_bytes: int = 64 * MIB
    max_client_batch_size: int = 2048
    max_text_characters: int | None = None
    max_queued_tokens: int | None = None
    max_concurrent_requests: int = 512
    timeout: float = 300.0
    body_timeout: float = 20.0
    drain: float = 30.0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model in requests: its short name, and what the server was started with."""
        return tuple(dict.fromkeys((self.served_model_name or self.model.rstrip("/").rpartition("/")[2], self.model)))

    @property
    def is_resident(self) -> bool:
        """Whether the model is a language model that stays as it is, for encoders and chats."""
        return bool(self.encoder or self.encoder_folder or self.chat)

    def read_encoders(self) -> dict[str, str]:
        """Return the folders of encoders by name.

        Raises:
            ValueError: a name or folder is missing, a name is in use, or settings do not go together.
        """
        folders: dict[str, str] = {}
        for item in self.encoder:
            name, _, folder = item.partition("=")
            if not name or not folder:
                raise ValueError(f"encoder={item!r}; give NAME=DIR, such as legal=out/legal")
            if name in folders or name in self.names:
                raise ValueError(f"encoder={item!r}: the name {name} is in use; choose another")
            folders[name] = folder
        for setting in ("int8_ranges", "pooling"):
            if self.is_resident and getattr(self, setting) is not None:
                raise ValueError(f"{setting} belongs to one encoder that is served alone; leave it out")
        if self.is_resident and self.backend != "torch":
            raise ValueError(f"backend={self.backend!r}: encoders of one language model run on torch; leave it out")
        return folders

    def read_keys(self) -> tuple[str, ...]:
        """Return the API keys of the file, one per line, or that of the environment; none: no key is needed.

        Raises:
            ValueError: the file holds none, or a header cannot hold one.
        """
        file = self.api_key_file
        text = os.environ.get(KEY, "") if file is None else file.read_bytes().decode("utf-8-sig", errors="replace")
        keys = tuple(line.strip() for line in text.splitlines() if line.strip())
        if file is not None and not keys:
            raise ValueError(f"{file} holds no API key; write one per line")
        for number, key in enumerate(keys, 1):
            if not (key.isascii() and key.isprintable()) or " " in key:
                raise ValueError(
                    f"API key {number} of {file or KEY} cannot be sent in a header; use ASCII without spaces"
                )
        return keys

    def read_ranges(self) -> tuple[Ranges | None, Mapping[str, Any] | None]:
        """Return the ranges of the folder of int8 codes, and what its vectors were computed with (`made_of`).

        Raises:
            ValueError: its vectors are no int8 codes.
        """
        if self.int8_ranges is None:
            return None, None
        from embrew.corpus import read_vectors

        vectors = read_vectors(self.int8_ranges)
        if vectors.ranges is None:
            raise ValueError(f"{self.int8_ranges} has no int8 ranges; make it with `embrew encode --precision int8`")
        return vectors.ranges, vectors.manifest.made_of
