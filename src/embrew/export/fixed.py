"""Encoders that stock tokenizers can reproduce: one length, the same words and memory tokens for every text."""

from __future__ import annotations

from embrew.encoder import Encoder


def with_one_length(encoder: Encoder, max_length: int | None = None) -> Encoder:
    """Return the same encoder with one length for queries and documents: `max_length`, or the one it has already.

    Raises:
        ValueError: it has two lengths and `max_length` is not given, or that is less than 1.
    """
    if max_length is not None:
        return with_max_length(encoder, max_length)
    lengths = sorted(set(encoder.max_length.values()))
    if len(lengths) > 1:
        each = " and ".join(f"{side} texts at {limit} tokens" for side, limit in encoder.max_length.items())
        raise ValueError(
            f"this encoder truncates {each}, and a stock Sentence-Transformers folder has one length for all; choose "
            f"it with --max-length N (in Python, max_length=N). With {lengths[-1]}, a long text of the shorter side "
            f"keeps more tokens than here; with {lengths[0]}, one of the longer side keeps fewer. Other texts get the "
            "same vectors"
        )
    return encoder


def with_max_length(encoder: Encoder, max_length: int) -> Encoder:
    """Return the same encoder, on the same weights, which truncates queries and documents to `max_length` tokens.

    Raises:
        TypeError, ValueError: it is not a whole number from 1.
    """
    return encoder.with_settings(max_length=max_length)


def with_instruction(encoder: Encoder, prompt_name: str) -> Encoder:
    """Return the same encoder with one of its prompts written into the template, and no prompts; weights are shared.

    Raises:
        ValueError: an unknown prompt name.
    """
    instruction = encoder.instruction(prompt_name, None)
    patterns = [template.with_words(instruction) for template in encoder.templates]
    template = patterns[0] if len(patterns) == 1 else patterns
    return encoder.with_settings(template=template, prompts={}, default_prompt_name=None)


def with_fixed_memory(encoder: Encoder) -> Encoder:
    """Return the same encoder without `memory_ratio`, if every text within its length limit gets one memory token.

    Raises:
        ValueError: some do.
    """
    ratio, most = encoder.settings.memory_ratio, max(t.most_memory(encoder.max_seq_length) for t in encoder.templates)
    if ratio is None:
        return encoder
    if most > 1:
        raise ValueError(
            f"memory_ratio={ratio:g}: texts of up to {encoder.max_seq_length} tokens get 1 to {most} memory tokens, "
            f"and a fixed number is needed here; with --max-length {int(ratio) + 1} or less every text gets one"
        )
    made = encoder.with_settings(memory_ratio=None)
    made.templates = made.make_templates(encoder.tokenizer, encoder.template.memory_ids[-1:])
    return made
