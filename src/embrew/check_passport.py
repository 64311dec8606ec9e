"""Check by its passport that an endpoint serves a model, or name what is wrong. Needs Python and numpy only.

    python check_passport.py passport.json http://HOST:PORT  a server: OpenAI's API, Text Embeddings Inference, Ollama
    python check_passport.py passport.json vectors.npy       vectors of the texts that --texts prints, in this order

From Python: `check(Passport.read("passport.json"), embed)`, with a function from a list of texts to one vector per
text. The exit code is 0 if the vectors are those of the passport, 1 if they are not, and 2 if they cannot be compared.
The key of a server is read from the environment variable EMBREW_API_KEY.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

FORMAT, FILE, TENSORS = 1, "passport.json", "passport.safetensors"
MOST_BYTES, MOST_ANSWER = 16_000_000, 64_000_000  # of a file of a passport, of an answer
MARGIN = 2.0  # a fault is named if its vectors are nearer than those of all others by this factor
CLEAR = 4.0  # the same, against the right vectors where these are within the tolerance
NOISE = 1e-6  # mean distance (1 - cosine) below which vectors are the same
TOO_NEAR = 1e-5  # mean distance from which a fault within the tolerance is named
STANDS_OUT = 10.0  # a text is wrong on its own, not just less precise, if it is farther than the median by this factor
ALIKE = 0.97  # mean cosine from which vectors that no fault explains can be those of less precise weights
LENGTH = 0.01  # largest relative difference of the lengths of vectors
FEW = 3  # right texts, at least, that are shorter than all wrong ones, where these are truncated
WORDS = {
    "bos_missing": "BOS is missing",
    "bos_doubled": "BOS is doubled",
    "bos_added": "BOS is added, which this encoder does not have",
    "eos_missing": "EOS, or the last token after the text, is missing",
    "end_missing": "EOS and all other tokens after the text are missing",
    "eos_doubled": "EOS, or the last token after the text, is doubled",
    "eos_added": "EOS is added, which this encoder does not have",
    "prompt_missing": "the prompt is missing",
    "prompt_doubled": "the prompt is doubled",
    "prompt_added": "the runtime adds a prompt of its own before every text",
    "prompt_other": "another prompt is applied",
    "pooling_mean": "wrong pooling: the mean of all tokens",
    "pooling_cls": "wrong pooling: the first token",
    "pooling_last": "wrong pooling: the last token",
    "pooling_weighted_mean": "wrong pooling: the weighted mean of all tokens",
    "attention_causal": "attention is causal instead of bidirectional",
    "attention_bidirectional": "attention is bidirectional instead of causal",
    "lower_case": "texts are lower-cased",
    "chat_template": "texts are put into the chat template of the language model",
    "adapter_missing": "the adapter is missing: these are the vectors of the base model",
    "adapter_missing_last": "the last adapter is missing",
    "adapter_doubled": "the adapter is added twice",
    "quantised_8bit": "weights are quantised to 8 bits",
    "quantised_4bit": "weights are quantised to 4 bits",
    "truncated_left": "long texts lose their beginning instead of their end",
    "truncated_left_no_start": "long texts lose their beginning, with what precedes the text, instead of their end",
}
"""Names of faults, in words; `words_of` has truncation, and prompts by name."""
TRUNCATED = re.compile(r"truncated_(\d+)(_no_end)?")
BY_NAME = re.compile(r"(prompt_other|prompt_added)_(.+)")


# ---- the file ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Passport:
    """Content of a passport.

    Attributes:
        about: the JSON object.
        tensors: arrays `(texts, dimensions)` float32 by name.
    """

    about: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    @classmethod
    def read(cls, path: str | Path) -> Passport:
        """Read `passport.json`, or that of a folder, and the tensors beside it.

        Raises:
            OSError: there is no such file.
            ValueError: it is damaged, or of another format.
        """
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        return cls.parse(lambda name: _bytes(path if name == FILE else path.with_name(name)), path)

    @classmethod
    def parse(cls, content: Callable[[str], bytes], where: object) -> Passport:
        """Return the passport whose files a function gives by name; `where` is for the error, as of `read`."""
        try:
            about = json.loads(content(FILE))
            if about.get("format") != FORMAT:
                raise ValueError(f"it has format {about.get('format')!r}, and this checker reads format {FORMAT}")
            data = content(TENSORS)
            if hashlib.sha256(data).hexdigest() != about["sha256"]:
                raise ValueError(f"{TENSORS} is not the one that it was written with")
            tensors = read_safetensors(data)
            _check(about, tensors)
        except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"{where} is no valid passport: {error or type(error).__name__}") from error
        return cls(about, tensors)

    def right(self, prompt: str) -> dict[int, np.ndarray]:
        """Return the right vectors of a prompt by the number of the text."""
        entry = self.about["prompts"][prompt]
        return dict(zip(entry["texts"], self.tensors[entry["tensor"]], strict=True))

    def wrong(self, prompt: str) -> dict[str, dict[int, np.ndarray]]:
        """Return vectors by fault and number of the text, of a prompt or one with the same right vectors."""
        prompts = self.about["prompts"]
        same = {name for name, entry in prompts.items() if entry["tensor"] == prompts[prompt]["tensor"]}
        return {
            entry["fault"]: dict(zip(entry["texts"], self.tensors[entry["tensor"]], strict=True))
            for entry in self.about["wrong"]
            if entry["prompt"] in same
        }

    def token_count(self, prompt: str, text: int) -> int | None:
        """Return the number of tokens of a text with its prompt; None: the passport does not say it."""
        entry = self.about["prompts"][prompt]
        return len(entry["ids"][entry["texts"].index(text)]) if "ids" in entry else None

    @property
    def tolerance(self) -> float:
        """Largest 1 - cosine of a text, in the least precise arithmetic that is allowed."""
        return max(float(self.about["tolerances"][name]) for name in self.about["allowed"])


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path.name} has more than {MOST_BYTES:,} bytes")
    return data


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file with float32 or float16 matrices, as float32.

    Raises:
        ValueError: it is no such file.
    """
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise ValueError("its tensors are no safetensors file")
    header, body = json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = np.dtype({"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
        (rows, columns), (begin, end) = entry["shape"], entry["data_offsets"]
        if any(type(number) is not int for number in (rows, columns, begin, end)) or min(rows, columns) < 1:
            raise ValueError(f"{name} has no valid shape")
        if not 0 <= begin <= end <= len(body) or end - begin != rows * columns * dtype.itemsize:
            raise ValueError(f"{name} is not within the file")
        tensors[name] = np.frombuffer(body[begin:end], dtype).reshape(rows, columns).astype(np.float32)
        if not np.isfinite(tensors[name]).all():
            raise ValueError(f"{name} is not finite")
    return tensors


def _check(about: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Raise unless the parts of a passport fit together."""
    texts, dimensions = about["texts"], about["model"]["dimensions"]
    if not all(isinstance(text, str) for text in texts) or not about["prompts"]:
        raise ValueError("its texts are no texts, or it has no prompts")
    for entry in [*about["prompts"].values(), *about["wrong"]]:
        numbers, shape = entry["texts"], tensors[entry["tensor"]].shape
        if shape != (len(numbers), dimensions) or not all(type(i) is int and 0 <= i < len(texts) for i in numbers):
            raise ValueError(f"{entry['tensor']} has the shape {shape} for {len(numbers)} texts")
        if not isinstance(entry.get("words"), str | None) or len(entry.get("ids", numbers)) != len(numbers):
            raise ValueError(f"{entry['tensor']} has no valid words or ids")
    if any(not isinstance(entry["fault"], str) or entry["prompt"] not in about["prompts"] for entry in about["wrong"]):
        raise ValueError("a fault has no name, or is of an unknown prompt")
    if not about["allowed"] or not all(0 < float(about["tolerances"][name]) < 1 for name in about["allowed"]):
        raise ValueError("it has no tolerance")


# ---- the comparison ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """What a comparison says.

    Attributes:
        equal: whether the vectors are those of the passport.
        verdict: the same in words.
        faults: names of faults; those that come together are joined by `+`.
        ambiguous: whether several faults give the same vectors, so that they exclude each other.
        evidence: figures that the verdict rests on.
        notes: further facts.
    """

    equal: bool
    verdict: str
    faults: list[str]
    ambiguous: bool = False
    evidence: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Key = tuple[str, int]  # name of a prompt, and number of a text
Embed = Callable[[list[str]], Any]


def check(passport: Passport, embed: Embed, *, prompt: str | None = None, batch_size: int = 8) -> Check:
    """Compare what a function gives for the texts of a passport with its vectors.

    Args:
        passport: the passport.
        embed: from texts to vectors, `(texts, dimensions)`.
        prompt: name of the prompt that `embed` applies itself; None: it applies none, so that texts come with prompts.
        batch_size: texts per call.

    Raises:
        ValueError: an unknown prompt, or something that is no vector.
    """
    sent = requests(passport, prompt)
    vectors: list[np.ndarray] = []
    for start in range(0, len(sent), batch_size):
        texts = [text for _, text in sent[start : start + batch_size]]
        vectors += list(as_vectors(embed(texts), texts))
    if len({len(vector) for vector in vectors}) > 1:
        raise ValueError("the vectors have different dimensions")
    return check_vectors(passport, {key: vector for (key, _), vector in zip(sent, vectors, strict=True)})


def requests(passport: Passport, prompt: str | None = None) -> list[tuple[Key, str]]:
    """Return what is sent: a prompt and a text by name and number, and both as one string. Arguments as in `check`.

    Raises:
        ValueError: there is no such prompt, or none that can be put before a text.
    """
    texts, prompts = passport.about["texts"], passport.about["prompts"]
    if prompt is not None and prompt not in prompts:
        raise ValueError(f"prompt {prompt!r}; the passport has {', '.join(map(repr, prompts))}")
    if prompt is not None:
        return [((prompt, i), texts[i]) for i in prompts[prompt]["texts"]]
    by_text = {
        entry["words"] + texts[i]: (name, i)
        for name, entry in reversed(prompts.items())
        if entry["words"] is not None
        for i in reversed(entry["texts"])
    }
    if not by_text:
        raise ValueError("the model alone can apply its prompts; name the one that the endpoint applies (--prompt)")
    return [(key, text) for text, key in reversed(by_text.items())]


def as_vectors(values: Any, texts: Sequence[str]) -> np.ndarray:
    """Return vectors as float32 `(texts, dimensions)`.

    Raises:
        ValueError: it is not one vector of finite numbers per text.
    """
    try:
        array = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise ValueError("vectors of different dimensions, or something that is no vector") from None
    if array.ndim != 2 or not array.shape[1] or len(array) != len(texts):
        raise ValueError(f"an array of shape {array.shape} for {len(texts)} texts; one vector per text is needed")
    is_bad = ~np.isfinite(array).all(-1)
    if is_bad.any():
        raise ValueError(f"a vector with NaN or infinity for {texts[int(is_bad.argmax())][:60]!r}")
    return array


def check_vectors(passport: Passport, vectors: Mapping[Key, np.ndarray]) -> Check:
    """Compare vectors by prompt and text with those of a passport."""
    about, tolerance = passport.about, passport.tolerance
    right = {(prompt, i): row for prompt in about["prompts"] for i, row in passport.right(prompt).items()}
    keys = list(vectors)
    measured, expected = np.stack([vectors[key] for key in keys]), np.stack([right[key] for key in keys])
    distance = dict(zip(keys, distances(measured, expected), strict=True))
    notes, special = [], about.get("special")
    plain = [key for key in keys if key[1] != special]
    if max(distance[key] for key in plain) <= tolerance < max(distance.values()):
        notes.append("a text with names of special tokens, such as </s>, gets another vector: they are read as tokens")
        keys = plain
    candidates, base = candidates_of(passport, list(vectors))
    on_base = np.stack([vectors[key] for key in base])
    named = nearest_faults(on_base, candidates, tolerance)
    faults = named or []
    evidence = _evidence(base, on_base, candidates, faults, about["texts"])
    if not faults:
        faults = truncation(passport, vectors, distance)
    every = np.array([distance[key] for key in keys])
    if not faults and every.max() > tolerance:
        faults = [_unnamed(every, tolerance)]
    causes = [words_of(fault, about["model"]["max_length"]) for fault in faults]
    ambiguous = len(named or []) > 1
    if ambiguous:
        causes = [f"ambiguous: {' or '.join(causes)}"]
    for fault, words in shape_faults(measured, expected, tolerance, named=bool(faults)):
        faults, causes = [*faults, fault], [*causes, words]
    evidence.insert(0, f"lowest cosine {1 - every.max():.6f}, mean {1 - every.mean():.6f}, of {len(every)} texts")
    if faults:
        return Check(False, f"different: {'; '.join(causes)}", faults, ambiguous, evidence, notes)
    by_size = sorted(about["allowed"], key=lambda name: float(about["tolerances"][name]))
    arithmetic = next(name for name in by_size if every.max() <= float(about["tolerances"][name]))
    return Check(True, f"equal: within the tolerance of {arithmetic}", [], False, evidence, notes)


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return 1 - cosine of each pair of vectors, in the leading dimensions that both have; 0 where both are zero."""
    shared = min(a.shape[-1], b.shape[-1])
    a, b = a[..., :shared].astype(np.float64), b[..., :shared].astype(np.float64)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    both_zero = ~a.any(axis=-1) & ~b.any(axis=-1)
    return np.where(both_zero, 0.0, 1 - (a * b).sum(-1) / np.maximum(norms, 1e-12))


def nearest_faults(measured: np.ndarray, candidates: Mapping[str, np.ndarray], tolerance: float) -> list[str] | None:
    """Return the faults whose vectors were measured; none: the right ones, named ""; None: neither."""
    distance = {name: distances(measured, vectors) for name, vectors in candidates.items()}
    mean = {name: float(each.mean()) for name, each in distance.items()}
    accepted = {name for name, each in distance.items() if each.max() <= tolerance}
    best = min(mean.values())
    near = {name for name in candidates if mean[name] <= max(MARGIN * best, best + NOISE)}
    named = near & accepted - {""}
    if "" in accepted and ("" in near or not named or mean[""] < max(TOO_NEAR, best * CLEAR)):
        return []
    if "" in near or not named:
        return None
    if "prompt_doubled" in named:  # a prompt that is added before the same prompt
        named = {name for name in named if not name.startswith("prompt_added")}
    fewest = min(name.count("+") for name in named)
    return [name for name in candidates if name in named and name.count("+") == fewest]


def nearest_truncation(
    measured: np.ndarray, right: np.ndarray, stored: Mapping[str, np.ndarray], tolerance: float
) -> str | None:
    """Return the truncation whose vector of a long text was measured, if the right one is clearly farther."""
    to_right = float(distances(measured, right))
    distance = {name: float(distances(measured, vector)) for name, vector in stored.items()}
    nearest, *others = sorted(distance, key=lambda name: distance[name])
    farther = [to_right if to_right > TOO_NEAR else 0.0, *(distance[name] for name in others)]
    factor = MARGIN if to_right > tolerance else CLEAR
    is_clear = max(factor * distance[nearest], NOISE) < min(farther)
    return nearest if distance[nearest] <= tolerance and is_clear else None


def truncation(passport: Passport, vectors: Mapping[Key, np.ndarray], distance: Mapping[Key, float]) -> list[str]:
    """Return the truncation that the long text shows, or that texts beyond some length do."""
    last, tolerance = len(passport.about["texts"]) - 1, passport.tolerance
    for prompt, i in vectors:
        stored = {
            name: rows[last] for name, rows in passport.wrong(prompt).items() if last in rows and "truncated" in name
        }
        if i == last and stored:
            fault = nearest_truncation(vectors[prompt, i], passport.right(prompt)[i], stored, tolerance)
            if fault is not None:
                return [fault]
    counts = {key: passport.token_count(*key) or 0 for key in vectors}
    wrong = [key for key in vectors if distance[key] > tolerance]
    shortest = min((counts[key] for key in wrong), default=0)
    shorter = [key for key in vectors if counts[key] < shortest]
    if wrong and len(shorter) >= FEW and len(shorter) + len(wrong) == len(vectors):
        return [f"truncated_below_{shortest}"]
    return []


def shape_faults(measured: np.ndarray, expected: np.ndarray, tolerance: float, *, named: bool) -> list[tuple[str, str]]:
    """Return faults by dimensions and lengths of vectors, with words; the latter, under a fault, only if they are 1."""
    sizes = measured.shape[1], expected.shape[1]
    faults = [] if sizes[0] == sizes[1] else [("dimensions", f"{sizes[0]} dimensions instead of {sizes[1]}")]
    lengths, right = np.linalg.norm(measured, axis=1), np.linalg.norm(expected, axis=1)
    is_normalised = bool((np.abs(right[right > 0] - 1) < LENGTH).all())
    allowed = max(LENGTH, (2 * tolerance) ** 0.5)  # noise as large as the cosine allows sideways
    other = np.abs(lengths - right) > allowed * right
    if other.any() and (is_normalised or not named) and (is_normalised or sizes[0] == sizes[1]):
        ranges = [f"{norms[other].min():.3g} to {norms[other].max():.3g}" for norms in (lengths, right)]
        what = "are not normalised: lengths" if is_normalised else f"have other lengths than {ranges[1]}:"
        faults.append(("norm", f"{other.sum()} of {len(other)} vectors {what} {ranges[0]}"))
    return faults


def words_of(fault: str, limit: int) -> str:
    """Return a fault in words.

    Args:
        fault: its name, or several joined by `+`.
        limit: limit in tokens of the model.
    """
    if "+" in fault:
        return ", and ".join(words_of(name, limit) for name in fault.split("+"))
    if fault.startswith("truncated_below_"):
        return (
            f"texts of {fault.rpartition('_')[2]} tokens and more differ, shorter ones do not: long texts are "
            f"truncated elsewhere than at {limit} tokens, or lose their end"
        )
    cut, by_name = TRUNCATED.fullmatch(fault), BY_NAME.fullmatch(fault)
    if fault == "not_truncated":
        return f"texts are not truncated at {limit} tokens"
    if cut is not None:
        where = f"at {cut[1]} tokens" + (f" instead of {limit}" if int(cut[1]) != limit else "")
        return f"long texts are truncated {where}" + (", and lose EOS or what else follows a text" if cut[2] else "")
    if by_name is not None:
        return f"{WORDS[by_name[1]]}: {by_name[2]!r}"
    return WORDS.get(fault, UNNAMED.get(fault, fault))


UNNAMED = {
    "texts": "some texts have other vectors, and no known fault explains them",
    "quantised": "no known fault gives these vectors, and they are near the right ones: weights of lower precision "
    "than the passport allows, or a small change of them",
    "other_model": "another model, or other weights: no known fault gives these vectors",
}


def _unnamed(distance: np.ndarray, tolerance: float) -> str:
    """Return a name for vectors that no fault explains."""
    if (distance > tolerance).mean() <= 0.5 and distance.max() > STANDS_OUT * max(float(np.median(distance)), NOISE):
        return "texts"
    return "quantised" if distance.mean() <= 1 - ALIKE else "other_model"


def candidates_of(passport: Passport, keys: Sequence[Key]) -> tuple[dict[str, np.ndarray], list[Key]]:
    """Return vectors of the same texts by fault, "" for the right ones, and these texts, which are some of `keys`.

    A text that a fault has no vector for, as one without a prompt where the prompt is missing, has the right one.
    """
    prompts = dict.fromkeys(prompt for prompt, _ in keys)
    right = {(prompt, i): row for prompt in prompts for i, row in passport.right(prompt).items()}
    wrong = {prompt: passport.wrong(prompt) for prompt in prompts}
    largest = max((len(faults) for faults in wrong.values()), default=0)  # prompts with fewer lack most faults
    full = [prompt for prompt in prompts if 2 * len(wrong[prompt]) >= largest > 0]
    stored = [set(rows) for prompt in full for rows in wrong[prompt].values() if len(rows) > 1]
    texts = set.intersection(*stored) if stored else set()
    base = [(prompt, i) for prompt, i in keys if i in texts and prompt in full] or list(keys)
    dropped = {"quantised_8bit"} if "int8" in passport.about["allowed"] else set()
    names = dict.fromkeys(name for faults in wrong.values() for name, rows in faults.items() if len(rows) > 1)
    candidates = {"": np.stack([right[key] for key in base])}
    for name in names:
        if name not in dropped:
            rows = [wrong[prompt].get(name, {}).get(i, right[prompt, i]) for prompt, i in base]
            candidates[name] = np.stack(rows)
    return candidates, base


def _evidence(
    base: Sequence[Key], measured: np.ndarray, candidates: Mapping[str, np.ndarray], faults: Sequence[str], texts: Any
) -> list[str]:
    """Return cosines to the right vectors and to those of the faults, and those of the text that differs most."""
    lines = []
    to_right = distances(measured, candidates[""])
    for fault in faults:
        to_fault = distances(measured, candidates[fault])
        farthest = int(to_right.argmax())
        lines.append(
            f"{fault}: mean cosine {1 - to_fault.mean():.6f} to its vectors, {1 - to_right.mean():.6f} to the right "
            f"ones; {texts[base[farthest][1]][:40]!r}: {1 - to_fault[farthest]:.6f} and {1 - to_right[farthest]:.6f}"
        )
    return lines


# ---- servers -------------------------------------------------------------------------------------------------------

PATHS = {"/v1/embeddings": "openai", "/v1": "openai", "/api/embed": "ollama", "/embed": "tei"}
"""Ends of addresses and the kind of server that has them; the longest first."""


@dataclass(frozen=True)
class Api:
    """The requests and answers of a kind of server.

    Attributes:
        kind: `openai`, `tei` or `ollama`.
        title: name of the kind.
        path: path of requests for vectors.
        texts: key of the texts in a request.
        vectors: function that returns the vectors of an answer.
        about: path that only this kind of server has, and a key of its answer: the list of models, if there is one.
        model: key of a model's name in that list; None: the server has one model.
        by_name: whether a request can name a prompt.
    """

    kind: str
    title: str
    path: str
    texts: str
    vectors: Callable[[Any], list[object]]
    about: tuple[str, str]
    model: str | None = None
    by_name: bool = False


def _by_index(answer: Any) -> list[object]:
    """Return the vectors of OpenAI's API, which may come in any order, or as float32 in base64 without being asked."""
    items = answer["data"]
    by_index = {item.get("index", position): item["embedding"] for position, item in enumerate(items)}
    vectors = [by_index[index] for index in range(len(items))]
    return [np.frombuffer(b64decode(vector), dtype="<f4") if isinstance(vector, str) else vector for vector in vectors]


def _in_order(answer: Any) -> list[object]:
    return [answer[i] for i in range(len(answer))]


APIS = {
    api.kind: api
    for api in (
        Api("tei", "Text Embeddings Inference", "/embed", "inputs", _in_order, ("/info", "model_id"), by_name=True),
        Api("ollama", "Ollama", "/api/embed", "input", itemgetter("embeddings"), ("/api/tags", "models"), model="name"),
        Api("openai", "OpenAI's API", "/v1/embeddings", "input", _by_index, ("/v1/models", "data"), model="id"),
    )
}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key is sent to the address that the user gave, and nowhere else."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow no redirect."""


def send(url: str, body: Mapping[str, Any] | None = None, *, timeout: float = 60.0) -> Any:
    """Return the JSON that an address answers a GET with, or a POST of a body.

    Raises:
        ValueError: it cannot be reached, or answers with an error or no JSON.
    """
    key = os.environ.get("EMBREW_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError("the key in EMBREW_API_KEY has characters that no key has; copy it again")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout) as answer:
            return json.loads(answer.read(MOST_ANSWER))
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} answers {error.code}: {error.read(300).decode(errors='replace')}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{url} gives no answer that can be read: {error}") from None


def server(url: str, *, kind: str | None = None, model: str | None = None, prompt: str | None = None) -> Embed:
    """Return a function from texts to the vectors of a server.

    Args:
        url: its address, with or without the path of an API.
        kind: `openai`, `tei` or `ollama`; None: by the address, or by asking it.
        model: name of the model; None: its only one.
        prompt: name of a prompt that a request names, where the API has that.

    Raises:
        ValueError: it cannot be reached, its kind is unknown, or it has several models.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url} is no address; give http://HOST:PORT")
    end = next((end for end in PATHS if urlsplit(url).path.rstrip("/").endswith(end)), "")
    root = url.rstrip("/").removesuffix(end)
    kind = kind or PATHS.get(end) or _kind_of(root)
    api = APIS[kind]
    fields: dict[str, Any] = {}
    if api.model is not None:
        fields["model"] = model or _only_model(root, api)
    if prompt:
        fields |= {"prompt_name": prompt} if api.by_name else {}
        if _is_embrew(root):
            fields |= {"input_type": prompt} if prompt in ("query", "document") else {"prompt_name": prompt}

    def embed(texts: list[str]) -> list[object]:
        answer = send(root + api.path, {api.texts: texts, **fields})
        try:
            return api.vectors(answer)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError(f"{root}{api.path} does not answer as {api.title} does; check --kind") from None

    return embed


def _kind_of(root: str) -> str:
    for kind, api in APIS.items():
        try:
            if api.about[1] in send(root + api.about[0]):
                return kind
        except (TypeError, ValueError):
            continue
    raise ValueError(f"{root} cannot be reached, or its kind is unknown; give --kind {', '.join(APIS)}")


def _only_model(root: str, api: Api) -> str:
    path, models = api.about
    try:
        names = [str(entry[api.model]) for entry in send(root + path)[models]]
    except (KeyError, TypeError):
        names = []
    if len(names) != 1:
        raise ValueError(f"{root}{path} lists {', '.join(names) or 'no model'}; name one with --model")
    return names[0]


def _is_embrew(root: str) -> bool:
    try:
        return bool(send(f"{root}/info")["server"] == "embrew")
    except (KeyError, TypeError, ValueError):
        return False


def check_file(passport: Passport, path: str, *, prompt: str | None = None) -> Check:
    """Compare the vectors in a file `.npy`, in the order of `requests`, with those of a passport.

    Raises:
        OSError: there is no such file.
        ValueError: it is no array of that many vectors.
    """
    sent = requests(passport, prompt)
    vectors = as_vectors(np.load(path, allow_pickle=False), [text for _, text in sent])
    return check_vectors(passport, {key: vector for (key, _), vector in zip(sent, vectors, strict=True)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passport", help="passport.json, or its folder")
    parser.add_argument("endpoint", nargs="?", help="address of a server, or a file .npy of vectors")
    parser.add_argument("--model", help="name of the model on a server of several")
    parser.add_argument("--kind", choices=list(APIS), help="kind of the server; by default found by asking it")
    parser.add_argument("--prompt", help="name of the prompt that the endpoint applies itself; by default none")
    parser.add_argument("--batch-size", type=int, default=8, help="texts per request; default: 8")
    parser.add_argument("--texts", action="store_true", help="print the texts as JSON, one per line, and exit")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    try:
        passport = Passport.read(options.passport)
        if options.texts or options.endpoint is None:
            for _, text in requests(passport, options.prompt):
                sys.stdout.write(json.dumps(text, ensure_ascii=False) + "\n")
            return 0
        if options.endpoint.lower().startswith(("http://", "https://")):
            embed = server(options.endpoint, kind=options.kind, model=options.model, prompt=options.prompt)
            result = check(passport, embed, prompt=options.prompt, batch_size=max(1, options.batch_size))
        else:
            result = check_file(passport, options.endpoint, prompt=options.prompt)
    except (EOFError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    lines = [result.verdict, *(f"  {line}" for line in [*result.evidence, *result.notes])]
    sys.stdout.write((json.dumps(asdict(result), ensure_ascii=False) if options.json else "\n".join(lines)) + "\n")
    return 0 if result.equal else 1


if __name__ == "__main__":
    sys.exit(main())
