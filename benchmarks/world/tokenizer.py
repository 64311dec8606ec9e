"""The teacher's tokenizer: one token per word of the world, bytes for anything else."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from world.facts import World

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
LENGTH = 256  # tokens that the teacher reads


def make_tokenizer(world: World) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer without merges that knows the world's words, each with the space before it.

    A text begins with a space too, so that a word is the same token everywhere.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Ġ" + word for word in [*world.vocabulary(), "?"]]
    known = list(dict.fromkeys([BOS, EOS, PAD, *alphabet, *words]))
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(known)}, merges=[], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BOS, EOS, PAD])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, backend.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=PAD, model_max_length=LENGTH,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
