"""A causal LM that answers questions about contexts.

The prompt is ESE's (Espresso Sentence Embeddings, arXiv 2402.14776, Table 4); decoding is greedy; the answer is the
first generated line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embrew.progress import progress

if TYPE_CHECKING:  # torch and transformers are imported when a model is opened: tables need neither
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from embrew.settings.base import Base

# ESE: Espresso Sentence Embeddings (arXiv 2402.14776), Table 4: what the generator of its retrieval-augmented answers
# is asked. The table does not show where lines end; here each part has a separate line.
PROMPT = (
    "As an advanced QA system, your role is to provide accurate and straightforward answers based on the provided "
    "context. Utilize the following information to answer the given question, directly output the straightforward "
    "answer, and do not explain it:\n"
    "Context: {context}.\n"
    "Question: {question}.\n"
    "Requirement: For 'yes/no' question, directly output 'yes' or 'no'. For the 'who' question, directly output the "
    "people's names. For the 'when' question, directly output the date or time, so on and so forth.\n"
    "Output:"
)


def find_generator(name: str) -> Base:
    """Return the base that `nano`, a folder or a Hub id names, without opening its weights.

    Raises:
        FileNotFoundError: the model does not exist on this machine.
        ValueError: it is not a causal LM and cannot generate text.
    """
    from embrew.storage.base_model import base_of, is_encoder, open_config

    config = open_config(name, trust_remote_code=False)
    if getattr(config, "is_encoder_decoder", False) or is_encoder(config):
        architecture = (getattr(config, "architectures", None) or [type(config).__name__])[0]
        raise ValueError(
            f"generator={name!r} is a {architecture}, which does not continue texts; give a causal LM (Llama, Qwen, "
            "Mistral, …), or leave it out for answer recall alone"
        )
    return base_of(name, revision=getattr(config, "_commit_hash", None))


@dataclass
class Generator:
    """A causal LM that answers questions about contexts.

    Attributes:
        answered: Answers so far by prompt: cells of a grid that find the same context have the same prompt.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_new_tokens: int = 32
    answered: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, name: str, *, max_new_tokens: int = 32) -> Generator:
        """Open `nano`, a folder or a Hub id; bfloat16 on a GPU, float32 on a CPU."""
        from embrew.storage.base_model import open_base, pick_device, pick_dtype

        device = pick_device(None)
        model, tokenizer, _ = open_base(name, dtype=pick_dtype("auto", device))
        return cls(model.to(device), tokenizer, max_new_tokens=max_new_tokens)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        from transformers import GenerationConfig

        self.tokenizer.padding_side = "left"  # generation continues from the last position
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        config = self.model.generation_config
        # Chat models come with temperature, repetition penalty and the like, which are not greedy decoding.
        self.model.generation_config = GenerationConfig(
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
            bos_token_id=config.bos_token_id if config else None,
            eos_token_id=config.eos_token_id
            if config and config.eos_token_id is not None
            else self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
        )

    def answers(
        self, contexts: Sequence[str], questions: Sequence[str], *, batch_size: int = 8, show_progress_bar: bool = False
    ) -> list[str]:
        """Return one answer per question: the first line that the model generates after context and question."""
        prompts = [self.prompt(context, question) for context, question in zip(contexts, questions, strict=True)]
        new = sorted(
            {prompt for prompt in prompts if prompt not in self.answered}, key=lambda prompt: (-len(prompt), prompt)
        )
        with progress(len(new), "answer", "question", show=show_progress_bar) as bar:
            for start in range(0, len(new), batch_size):
                batch = new[start : start + batch_size]
                self.answered.update(zip(batch, self._continue(batch), strict=True))
                bar.update(len(batch))
        return [self.answered[prompt] for prompt in prompts]

    def prompt(self, context: str, question: str) -> str:
        """Return ESE's prompt; the context is truncated so that the prompt fits into the model's positions."""
        prompt = PROMPT.format(context=context, question=question)
        room = getattr(self.model.config, "max_position_embeddings", None)
        if room is None:
            return prompt
        room -= self.max_new_tokens
        while (excess := len(self._ids(prompt)) - room) > 0:
            ids = self._ids(context, special=False)
            if not ids:
                raise ValueError(
                    f"the prompt without a context has {room + excess} tokens, and max_new_tokens is "
                    f"{self.max_new_tokens}, but the generator has positions for {room + self.max_new_tokens}; give "
                    "another generator, or a smaller max_new_tokens"
                )
            context = str(self.tokenizer.decode(ids[: max(len(ids) - excess, 0)]))
            prompt = PROMPT.format(context=context, question=question)
        return prompt

    def _ids(self, text: str, *, special: bool = True) -> list[int]:
        encoded = self.tokenizer(text, add_special_tokens=special, split_special_tokens=True, verbose=False)
        return list(encoded["input_ids"])

    def _continue(self, prompts: Sequence[str]) -> list[str]:
        import torch

        rows = self.tokenizer(
            list(prompts), padding=True, split_special_tokens=True, return_tensors="pt", return_token_type_ids=False
        ).to(self.model.device)
        with torch.inference_mode():
            written = self.model.generate(**rows)[:, rows["input_ids"].shape[1] :]  # type: ignore[operator]
        texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        return [text.strip().split("\n")[0].strip() for text in texts]
