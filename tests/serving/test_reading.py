"""The text side of an encoder: what `/tokenize` says of characters, and which requests share a forward pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from embrew.encoder import Encoder
from embrew.serving import service as serving
from embrew.serving.errors import ApiError
from embrew.serving.models import ReadOptions, ServedEncoder, TokenizedTexts
from embrew.serving.service import Service
from embrew.serving.settings import Settings
from tests.serving.running import Words, of_words

DECODER: dict[str, Any] = {"memory_tokens": 0, "attention": "causal", "pooling": "last"}
TEXTS = ("the cat sat", 'he said "no" and left', " x", "", "long text " * 30, "long text " * 300)


@pytest.mark.parametrize(
    "template",
    [
        "{instruction}{text}{eos}",
        '{instruction}This sentence: "{text}" means in one word:"',
        "{instruction}{text} again: {echo}",
    ],
)
def test_characters_of_tokens(template: str) -> None:
    """Also of a first token that begins with the last space of the prompt, and where the text is truncated."""
    preparation = "sentence" if "This" in template else "none"
    encoder = Encoder.from_pretrained("nano", **DECODER, template=template, preparation=preparation, max_length=60)
    reader, compared = ServedEncoder(encoder, Settings("tiny")), 0
    for text in TEXTS:
        for prompt in ("", "find: "):
            tokens = reader.tokenize(text, ReadOptions(prompt=prompt), special=False)
            for token in tokens:
                start, stop = token["start"], token["stop"]
                assert 0 <= start <= stop <= len(text), (text, prompt, token)
                shown = encoder.tokenizer.decode([token["id"]]).strip()
                if shown == text[start:stop].strip() and shown:
                    compared += 1
                else:  # it holds what the template puts before and after a sentence
                    assert '"' in shown or not shown or preparation == "sentence", (text, prompt, token)
    assert compared > 100, "no token names its characters"


def test_all_layers_by_number_share_a_pass_with_none(make_encoder: Callable[..., Encoder]) -> None:
    encoder = make_encoder(**DECODER, template="{text}{eos}")
    reader = ServedEncoder(encoder, Settings("tiny"))
    keys = [reader.read(["a"], ReadOptions(num_layers=depth)).key for depth in (None, encoder.backbone.num_layers, 1)]
    assert keys[0] == keys[1] != keys[2]


def test_parts_of_a_request_are_read_like_the_whole(make_encoder: Callable[..., Encoder]) -> None:
    """The same rows in the same order; errors name the text by its number in the request."""
    encoder = make_encoder(**DECODER, template="{instruction}{text}{eos}", max_length=70)
    reader = ServedEncoder(encoder, Settings("tiny"))
    texts: list[Any] = ["a" * 30, "b" * 30, [70, 71], "", "c" * 200, "d", *(["e" * 9] * 20)]
    service = Service(Settings("tiny"))
    service.start(reader, reader.read(["a"], ReadOptions()))
    with mock.patch.object(serving, "AT_ONCE", 64):
        for asked in (ReadOptions(), ReadOptions(prompt="find: ")):
            assert asyncio.run(service._read(texts, asked)) == reader.read(texts, asked)
        wrong = [["a" * 60, "a" * 60, "b", each] for each in ([999], "c" * 90)]
        for given in wrong:
            with pytest.raises(ApiError, match="^text 3 ") as parts:
                asyncio.run(service._read(given, ReadOptions(truncate=False)))
            with pytest.raises(ApiError) as whole:
                reader.read(given, ReadOptions(truncate=False))
            assert parts.value.message == whole.value.message
    service.close()


class Log(Words):
    """Notes the first letter of what is read, which takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def read(self, texts: list[Any], options: ReadOptions, *, first: int = 0) -> TokenizedTexts:
        """Read words."""
        self.log.append(texts[0][:1])
        time.sleep(0.01)
        return super().read(texts, options, first=first)


def test_a_small_request_takes_its_turn_between_the_parts_of_large_ones() -> None:
    model = Log()
    service = of_words(model)
    model.log.clear()

    async def requests() -> None:
        large = [asyncio.ensure_future(service._read(["long " * 5] * 20, ReadOptions())) for _ in range(2)]
        await asyncio.sleep(0.05)
        await service._read(["small"], ReadOptions())
        await asyncio.gather(*large)

    with mock.patch.object(serving, "AT_ONCE", 20):
        asyncio.run(requests())
    service.close()
    assert model.log.count("l") == 40
    assert model.log.index("s") < 20, model.log
