"""Answers of a language model to messages: its chat template, drawing with a seed, text as it is written, ends."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from embrew.model.layers import max_positions

Message = Mapping[str, Any]
Step = Callable[[Callable[[], Any]], Any]
PREFILL = 512  # tokens of a prompt per forward pass, after which others have their turn
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # in place of a character whose last bytes are in later tokens


@dataclass(frozen=True)
class Sampling:
    """How the tokens of an answer are drawn, and when it ends.

    Attributes:
        max_tokens: largest number of tokens; fewer where the model has no more positions.
        temperature: divisor of the logits; 0: the most probable token.
        top_p: the most probable tokens that together have this probability are drawn from.
        stop: texts at which the answer ends, before them.
        seed: seed of the draws; None: another one each time.
        max_seconds: seconds after which the answer ends; None: there is no limit.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    stop: Sequence[str] = ()
    seed: int | None = None
    max_seconds: float | None = None


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        text: the text.
        ids: ids of its tokens, those of the end included.
        prompt_tokens: number of tokens of the messages.
        finish_reason: `stop`: it ended itself, or at one of `Sampling.stop`; `length`: it was as long as allowed.
    """

    text: str
    ids: Sequence[int]
    prompt_tokens: int
    finish_reason: Literal["stop", "length"]


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], chat_template: str | None = None
) -> list[int]:
    """Return the token ids of messages in a chat template, up to where the answer begins.

    Names of special tokens within a message are these tokens, as in transformers.

    Raises:
        ValueError: there is no template, or it refuses the messages.
    """
    if chat_template is None and tokenizer.chat_template is None:
        raise ValueError("the tokenizer has no chat template; give one (embrew serve: --chat-template FILE)")
    try:
        encoded: Any = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            chat_template=chat_template,
            add_generation_prompt=True,
            return_dict=True,
        )
    except TemplateError as error:
        raise ValueError(f"the chat template of the model refuses the messages: {error}") from error
    return list(encoded["input_ids"])


def write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    sampling: Sampling,
    *,
    send: Callable[[str], None] = lambda text: None,
    step: Step = lambda call: call(),
) -> Answer:
    """Return what a model writes after a prompt, by its own `generate`.

    Args:
        model: a language model; its generation settings are not used, but for the ids that end a text.
        tokenizer: its tokenizer.
        ids: token ids of the prompt.
        sampling: how tokens are drawn, and when the text ends.
        send: called with each part of the text as it is written.
        step: calls each forward pass; may do it in another thread, and raise to end the writing.

    Raises:
        ValueError: the model has no positions left after the prompt.
    """
    room = check_room(model, len(ids))
    ends = _end_ids(model, tokenizer)
    stream = _Stream(tokenizer, sampling.stop, ends, send)
    settings = GenerationConfig(
        max_new_tokens=int(min(sampling.max_tokens, room)),
        do_sample=False,  # `_Draw` leaves one token
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        max_time=sampling.max_seconds,
        prefill_chunk_size=PREFILL if len(ids) > PREFILL else None,
    )
    prompt = torch.tensor([list(ids)], device=model.device)
    _by_steps(model, step).generate(  # type: ignore[operator]
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=settings,
        logits_processor=_processors(sampling, model.device),
        stopping_criteria=StoppingCriteriaList([_Stopped(stream)]),
        streamer=stream,
    )
    ended = stream.stopped or bool(stream.ids and stream.ids[-1] in ends)
    return Answer(stream.sent, stream.ids, len(ids), "stop" if ended else "length")


def check_room(model: PreTrainedModel, count: int) -> float:
    """Return the number of positions after a prompt of that many tokens; raise ValueError where there are none."""
    trained = getattr(model.config, "max_position_embeddings", None) or torch.inf
    inner: Any = model.base_model
    positions = min(max_positions(inner), trained)  # rotary positions have no limit of their own
    if count >= positions:
        raise ValueError(f"the messages have {count} tokens, and the model has {positions:g} positions; shorten them")
    return positions - count


def _end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    config = model.generation_config
    ends = tokenizer.eos_token_id if config is None or config.eos_token_id is None else config.eos_token_id
    return [] if ends is None else [int(ends)] if isinstance(ends, int) else [int(each) for each in ends]


def _by_steps(model: PreTrainedModel, step: Step) -> PreTrainedModel:
    """Return the model, on the same modules, with its own hooks, no generation settings, and calls by `step`."""
    view = copy.copy(model)
    view._forward_hooks, view._forward_pre_hooks = OrderedDict(), OrderedDict()
    view._forward_pre_hooks_with_kwargs, view._forward_hooks_with_kwargs = OrderedDict(), OrderedDict()
    view.generation_config = GenerationConfig()
    call = view.forward

    @functools.wraps(call)
    def forward(*arguments: Any, **keywords: Any) -> Any:
        def compute() -> Any:
            with torch.no_grad():  # which is of a thread
                return call(*arguments, **keywords)

        return step(compute)

    view.forward = forward
    return view


def _processors(sampling: Sampling, device: torch.device) -> LogitsProcessorList:
    if not sampling.temperature:
        return LogitsProcessorList()
    generator = torch.Generator(device)
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed(sampling.seed)
    top_p = [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    return LogitsProcessorList([TemperatureLogitsWarper(float(sampling.temperature)), *top_p, _Draw(generator)])


class _Draw(LogitsProcessor):
    """Draws a token with a generator of its own, where `generate` has one for all that a process writes at one time."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores of which one is not minus infinity."""
        drawn = torch.multinomial(scores.float().softmax(-1), 1, generator=self.generator)
        return torch.full_like(scores, -torch.inf).scatter(-1, drawn, 0.0)


class _Stream(BaseStreamer):
    """The text of tokens as they come; what may be the beginning of a stop is held back.

    Attributes:
        ids: ids of the tokens so far.
        sent: text so far.
        stopped: whether the text holds a stop.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str],
        ends: Sequence[int],
        send: Callable[[str], None],
    ) -> None:
        self.tokenizer, self.stop, self.ends, self.send = tokenizer, stop, ends, send
        self.ids: list[int] = []
        self.sent, self.stopped, self._has_prompt = "", False, False

    def put(self, value: Tensor) -> None:
        """Add the next token; the first call has the prompt."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        self.ids += value.flatten().tolist()
        text = self._text()
        if cuts := [text.index(stop) for stop in self.stop if stop in text]:
            self.stopped, text = True, text[: min(cuts)]
        elif self.ids[-1] not in self.ends:
            held = [n for stop in self.stop for n in range(1, len(stop)) if text.endswith(stop[:n])]
            text = text[: len(text) - max(held, default=0)].rstrip(REPLACEMENT)
        self._send(text)

    def end(self) -> None:
        """Send what was held back."""
        if not self.stopped:
            self._send(self._text())

    def _text(self) -> str:
        return str(self.tokenizer.decode(self.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _send(self, text: str) -> None:
        if len(text) > len(self.sent):
            self.send(text[len(self.sent) :])
            self.sent = text


class _Stopped(StoppingCriteria):
    """Ends the writing at a stop."""

    def __init__(self, stream: _Stream) -> None:
        self.stream = stream

    def __call__(self, input_ids: Tensor, scores: Tensor, **options: Any) -> Tensor:
        """Return whether each row ends."""
        return torch.full((len(input_ids),), self.stream.stopped, device=input_ids.device)
