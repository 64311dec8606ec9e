"""Models that write questions: a causal LM, an encoder trained by `questions/smollm2`, a server with OpenAI's API.

All of them sample. A question is the first line that is written, without a number, a label or quotes around it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import torch

from embrew.adapting.starts import fingerprint
from embrew.encoder import Encoder
from embrew.files.names import public_path
from embrew.generation import check_can_generate
from embrew.http_client import KEY, Client
from embrew.opening import is_bare
from embrew.runtimes.runtime import Refused
from embrew.settings.yaml_files import parse_yaml
from embrew.storage.loading import SETTINGS, final_stage

MAX_NEW_TOKENS = 48  # of a question
LONGEST = 512  # tokens of a passage, for language models that are not trained for questions
LEAST_ROOM = 16  # tokens of a passage
SAMPLING = {"temperature": 0.8, "top_p": 0.9}  # ours, not chosen by a measurement
TRAINED_BY = "sft"  # objective of the last stage of a trained writer
REQUESTS, TRIES, TIMEOUT = 8, 6, 300.0  # at once; of a busy server; seconds
CHARACTERS = 4.0  # of a token, in English
SLOT = "\x00passage\x00"  # stands for the passage while a chat template is filled in
ASK = (
    "Write {count} that a person who looks for the information in the passage below would ask. Do not copy its "
    "sentences, do not mention the passage, and write in its language. Answer with {form}.\n\nPassage:\n{passage}"
)
# What a language model without a chat template continues: examples of ours.
EXAMPLES = (
    (
        "The heart has four chambers. Blood returns from the body into the right atrium, and the right ventricle pumps "
        "it to the lungs.",
        "Which part of the heart sends blood to the lungs?",
    ),
    (
        "To return an item, send it back within 30 days in its box. The refund is paid to the card that was used for "
        "the order.",
        "How long do I have to send back something that I bought?",
    ),
    (
        "The Treaty of Tordesillas, signed in 1494, divided the newly discovered lands outside Europe between Portugal "
        "and Castile.",
        "What did Portugal and Castile agree on in 1494?",
    ),
)
_MARK = re.compile(r"^\s*(?:(?:[-*•]|\(?\d{1,2}[.):])\s+|\**(?:question|query|q)\s*\d*\s*\**:\**\s*)+", re.IGNORECASE)
_NO_QUESTION = re.compile(r"^(?:```|#+\s)|[:：]\**$")
THOUGHTS = ("<think>", "</think>")
_ENDS = (*"?!.…？！。؟", *(mark + quote for mark in "?!." for quote in "\"'”’)"))
_QUOTES = (('"', '"'), ("“", "”"), ("**", "**"), ("*", "*"))


class Written(NamedTuple):
    """A question; `is_whole` is False if the writer reached its limit of tokens within it."""

    text: str
    is_whole: bool


class Writer(Protocol):
    """A model that writes questions.

    Attributes:
        name: public name.
    """

    name: str

    @property
    def limit(self) -> int | None:
        """Number of tokens of a passage that it reads; None: unknown."""

    def tokens(self, passage: str) -> int:
        """Return the number of tokens of a passage; of a server, an estimate."""

    def write(self, passages: Sequence[str], count: int, *, seed: int) -> list[list[Written]]:
        """Return up to `count` questions of each passage."""


def public_writer(name: str) -> str:
    """Return the name of a writer as files hold it.

    Raises:
        ValueError: an address of no server, or with a user or a password.
    """
    if "://" in name:
        try:
            parts = urlsplit(name)
        except ValueError:
            parts = urlsplit("")
        if "@" in parts.netloc:
            raise ValueError(f"the writer's address holds a user or a password; give its key in the variable {KEY}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the writer's address is not that of a server; give http://HOST/v1#MODEL, or https://…")
    return public_path(name)


def writer_fingerprint(name: str) -> str:
    """Return what changes when a writer does: a hash of its files; of a server or a Hub id, the name."""
    public = public_writer(name)
    model = name if "://" in name else str(final_stage(Path(name)))
    of_files = model if "://" in name else fingerprint(model)
    return public if of_files == model else of_files


def open_writer(name: str) -> Writer:
    """Open a writer.

    Args:
        name: `nano`, a folder, GGUF file or Hub id of a causal LM; an encoder trained by `questions/smollm2`, or the
            folder of its run; the address of a server with OpenAI's API, `http://HOST/v1#MODEL`.

    Raises:
        FileNotFoundError: no such model.
        ValueError: a model that cannot write, an encoder of another objective, or an address that cannot be used.
    """
    if "://" in public_writer(name):
        return ServerWriter(name)
    folder = final_stage(Path(name))
    if os.path.lexists(folder / SETTINGS):
        return LocalWriter.trained(folder, name)
    if not is_bare(name):
        raise ValueError(
            f"{name} is an embedding model, which writes no questions; give a causal language model, or a folder "
            "trained by the recipe questions/smollm2"
        )
    return LocalWriter.language_model(name)


class LocalWriter:
    """A model on this machine; its questions depend on the passages, their number and the seed.

    Special tokens in a passage stay text.

    Args:
        encoder: the language model.
        name: its name.
        frame: tokens before and after a passage; None: those of the encoder's own template.
        limit: maximum number of tokens of a passage; the rest is not read.
    """

    def __init__(self, encoder: Encoder, name: str, *, frame: tuple[list[int], list[int]] | None, limit: int) -> None:
        check_can_generate(encoder, "text")
        if limit < LEAST_ROOM:
            raise ValueError(
                f"{name} has room for {limit} tokens of a passage; give a writer with {LEAST_ROOM} or more"
            )
        self.encoder, self.name, self.frame = encoder.eval(), public_path(name), frame
        self.limit: int | None = limit

    @classmethod
    def trained(cls, folder: Path, name: str) -> LocalWriter:
        """Open an encoder that was trained to write questions after its template."""
        encoder = Encoder.from_pretrained(folder, merge_adapter=True)
        stages = parse_yaml(encoder.recipe or "{}", source=f"{folder}/recipe.yaml").get("stages") or [{}]
        stage = next((stage for stage in stages if stage.get("name") == folder.name), stages[-1])
        objective = stage.get("objective", {}).get("type")
        if objective != TRAINED_BY:
            raise ValueError(
                f"{name} was trained by {objective or 'no recipe'}, and writes no questions; give a folder trained by "
                "the recipe questions/smollm2, or a causal language model"
            )
        around = encoder.template.rows([""], instruction=encoder.instruction("query"))[0]
        return cls(encoder, name, frame=None, limit=encoder.max_length["query"] - len(around.ids))

    @classmethod
    def language_model(cls, name: str) -> LocalWriter:
        """Open a causal LM, which is asked in its chat format, or shown three examples if it has none."""
        encoder = Encoder.from_pretrained(name, template="{text}", attention="causal", pooling="last")
        longest = int(min(encoder.backbone.max_positions, 1 << 20))
        encoder = encoder.with_settings(max_length=longest)
        frame = _chat_frame(encoder) if encoder.tokenizer.chat_template else _example_frame(encoder)
        room = longest - MAX_NEW_TOKENS - sum(map(len, frame)) - len(encoder.template.bos_ids)
        return cls(encoder, name, frame=frame, limit=min(LONGEST, room))

    def tokens(self, passage: str) -> int:
        """Return the number of tokens of a passage."""
        return len(self._ids(passage))

    def write(self, passages: Sequence[str], count: int, *, seed: int) -> list[list[Written]]:
        """Return `count` questions of each passage, sampled with a seed of their own."""
        rows: list[Any] = list(passages)  # texts, or ids of tokens
        if self.frame is not None:
            before, after = self.frame
            rows = [[*before, *self._ids(passage)[: self.limit], *after] for passage in passages]
        key = json.dumps([seed, count, *passages]).encode()
        options: dict[str, Any] = {**SAMPLING, "do_sample": True, "top_k": 0, "max_new_tokens": MAX_NEW_TOKENS}
        device = self.encoder.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "little"))
            written = self.encoder.generate(
                rows, source="text", num_return_sequences=count, batch_size=len(rows), **options
            )
        questions = [(questions_in(text) or [""])[0] for text in written]
        are_complete = [self._is_whole(text) for text in written]
        pairs = [Written(*pair) for pair in zip(questions, are_complete, strict=True)]
        return [pairs[start : start + count] for start in range(0, len(pairs), count)]

    def _ids(self, text: str) -> list[int]:
        return list(self.encoder.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def _is_whole(self, text: str) -> bool:
        """Return whether the question ended: by a mark, a further one, or before the limit (tokens may merge)."""
        line, *rest = questions_in(text) or [""]
        return bool(rest) or ends_sentence(line) or len(self._ids(text)) < 0.8 * MAX_NEW_TOKENS


def _chat_frame(encoder: Encoder) -> tuple[list[int], list[int]]:
    """Return the tokens before and after a passage in the chat format of a model."""
    tokenizer = encoder.tokenizer
    message = ASK.format(count="one question", form="the question only", passage=SLOT)
    rendered = str(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": message}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,  # of templates that know it
        )
    )
    before, slot, after = rendered.partition(SLOT)
    if not slot or SLOT in after:
        raise ValueError(f"the chat template of {encoder.base.name} does not hold the user's message once")
    ids = [
        list(tokenizer(part, add_special_tokens=False, split_special_tokens=False)["input_ids"])
        for part in (before, after)
    ]
    bos = encoder.template.bos_ids  # added to each row
    return ids[0][len(bos) :] if bos and ids[0][: len(bos)] == bos else ids[0], ids[1]


def _example_frame(encoder: Encoder) -> tuple[list[int], list[int]]:
    """Return the tokens before and after a passage, with as many examples before it as half the positions hold."""
    examples = [f"Passage: {passage}\nQuestion: {question}\n\n" for passage, question in EXAMPLES]
    after = encoder.template.after_text("\nQuestion:")
    while True:
        before = encoder.template.words("".join([*examples, "Passage: "]))
        if not examples or len(before) + len(after) <= encoder.max_length["query"] // 2:
            return before, after
        examples.pop()


class ServerWriter:
    """A server with OpenAI's API, asked for all questions of a passage at once, several passages at a time.

    A key is read from the environment variable `EMBREW_API_KEY`, and is in no file and no message. Whether special
    tokens in a passage stay text is up to the server.

    Args:
        url: `http://HOST/v1#MODEL`; without `#MODEL`, the first model of the server's list.

    Raises:
        ValueError: a key would be sent without encryption; or the server does not answer.
    """

    limit: int | None = None

    def __init__(self, url: str) -> None:
        address, _, model = url.partition("#")
        parts = urlsplit(address)
        address = address.rstrip("/").removesuffix("/chat/completions")
        address = address if parts.path.strip("/") else f"{address}/v1"
        advice = "look at its log, or choose a smaller model", "give the address up to /v1, and its model after #"
        self.client = Client(address, timeout=TIMEOUT, tries=TRIES, if_slow=advice[0], if_unknown=advice[1])
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if self.client.key and parts.scheme != "https" and not is_local:
            raise ValueError(f"{self.client.address} would be sent the key of {KEY} unencrypted; give an https address")
        self.model = model or self._first_model()
        self.name = f"{self.client.address}#{self.model}"

    def tokens(self, passage: str) -> int:
        """Return an estimate of the number of tokens."""
        return round(len(passage) / CHARACTERS)

    def write(self, passages: Sequence[str], count: int, *, seed: int) -> list[list[Written]]:
        """Return up to `count` questions of each passage."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            return list(pool.map(lambda passage: self._ask(passage, count, seed), passages))

    def _ask(self, passage: str, count: int, seed: int) -> list[Written]:
        for_several = {"count": f"{count} different questions", "form": "the questions only, one per line"}
        for_one = {"count": "one question", "form": "the question only"}
        message = ASK.format(**(for_one if count == 1 else for_several), passage=passage)
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": message}],
            "max_tokens": count * MAX_NEW_TOKENS,
            "seed": seed,
            **SAMPLING,
        }
        try:
            answer = self.client.answer("/chat/completions", body)
        except Refused as error:
            raise ValueError(
                f"{error}; the request had a passage of {len(passage)} characters and max_tokens, seed, temperature "
                "and top_p; give shorter passages, or another model after #"
            ) from error
        try:
            choice = answer["choices"][0]
            text, reason = choice["message"]["content"] or "", choice.get("finish_reason")
            lines = questions_in(text)
        except (LookupError, TypeError, AttributeError) as error:
            raise self._not_of_api(answer, "/chat/completions") from error
        if not lines and (THOUGHTS[0] in text or reason == "length"):
            raise ValueError(
                f"{self.name} answers with thoughts alone, or nothing, in {count * MAX_NEW_TOKENS} tokens; give a "
                "model that does not think first, or switch that off in the server"
            )
        are_complete = [True] * len(lines)
        if lines and reason == "length":
            are_complete[-1] = ends_sentence(lines[-1])
        return [Written(*pair) for pair in zip(lines, are_complete, strict=True)][:count]

    def _first_model(self) -> str:
        answer = self.client.answer("/models")
        try:
            return str(answer["data"][0]["id"])
        except (LookupError, TypeError) as error:
            raise self._not_of_api(answer, "/models") from error

    def _not_of_api(self, answer: object, path: str) -> ValueError:
        return self.client.not_of_api(answer, path, "OpenAI's API", advice=self.client.if_unknown)


def questions_in(text: str) -> list[str]:
    r"""Return the lines of a text that are not blank, without list marks, labels and quotes.

    Left out are thoughts (`<think>`), headings, marks of code and lines that announce others with a colon.

    >>> questions_in('<think>Hm.</think>Here they are:\n1. Who read it?\n\n- "When?"\nQuestion: Why?')
    ['Who read it?', 'When?', 'Why?']
    """
    text = text.rpartition(THOUGHTS[1])[2].partition(THOUGHTS[0])[0].encode(errors="replace").decode()
    lines = [" ".join(_MARK.sub("", line).split()) for line in text.splitlines()]
    for before, after in _QUOTES:
        lines = [
            line[len(before) : -len(after)].strip()
            if line.startswith(before) and line.endswith(after) and len(line) > len(before) + len(after)
            else line
            for line in lines
        ]
    return [line for line in lines if line and not _NO_QUESTION.search(line)]


def ends_sentence(text: str) -> bool:
    """Return whether a text ends with a mark that ends sentences."""
    return text.rstrip().endswith(_ENDS)
