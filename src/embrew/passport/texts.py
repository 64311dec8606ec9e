"""Reference texts: of many kinds, short and long, so that each fault of a runtime moves the vectors of some."""

from __future__ import annotations

from itertools import count

from transformers import PreTrainedTokenizerBase

REFERENCE_TEXTS = (
    "A heron waits in the shallow water.",
    "The bird stands still at the river's edge.",
    "Interest rates rose by a quarter of a point on Tuesday.",
    "How do I reverse a linked list?",
    "def area(radius: float) -> float:\n    return 3.14159 * radius ** 2",
    "ok",
    "Der Zug nach Brno fährt heute von Gleis sieben.",
    "今日は雨が降っています。",
    "مرحبا بالعالم",
    "Emoji are text too: 🦆🌧️👩🏽‍🚀",
    "A token that looks special: </s> <pad> <mem0> [CLS]",
    "   spaces   before,   between and after   ",
    "1234567890 3.14 -7e-3 0x1F",
    "UPPER lower CamelCase snake_case kebab-case",
    " ".join(["Long texts are cut at the end and keep their memory tokens."] * 60),
    "Last of all, a sentence that ends without a full stop",
)
"""Reference texts of many kinds, on whose vectors a saved folder is compared with the encoder in memory."""
CHOSEN = tuple(REFERENCE_TEXTS[i] for i in (0, 2, 3, 6, 15))  # plain words, which every tokenizer library splits alike
SPECIAL = REFERENCE_TEXTS[10]  # holds names of special tokens, which Rust tokenizers read as tokens in any text
PLAIN = (
    "IBM and NASA signed a contract in May.",
    "where can I renew my passport",
    "Boil the pasta for nine minutes and drain it.",
    "The defendant appealed the ruling last week.",
    "Vitamin D helps the body absorb calcium.",
    "SELECT name FROM users WHERE age > 30;",
    "Two trains left the station at noon.",
    "What is the capital of Australia?",
    "The battery lasts about eleven hours.",
    "A violin has four strings.",
    "El mercado abre a las ocho de la mañana.",
    "La bibliothèque est fermée le lundi.",
    "Она читает книгу у окна.",
    "Rain is expected over the coast tonight.",
    "Return the package within thirty days.",
    "The cat slept on the warm roof.",
    "Prices fell for the third month in a row.",
    "How tall is Mount Everest?",
    "She planted tomatoes behind the house.",
    "The committee will vote on Friday.",
    "Python lists are mutable, tuples are not.",
    "Our hotel was close to the beach.",
    "Penicillin was discovered in 1928.",
    "Please reset my password.",
    "The bridge was closed for repairs.",
    "Light travels faster than sound.",
    "He sold his car to a neighbour.",
    "This film is too long and hardly funny.",
    "The museum shows paintings by Goya.",
    "A prime number has exactly two divisors.",
    "Milk, eggs, flour and a little salt",
    "The server returned error 503.",
    "Bees find their way by the sun.",
    "不客气,明天见。",
    "Turn left after the second traffic light.",
    "an",
    "Why is the sky blue?",
    "Sales in Q3 were up 12% to $4.1 million.",
    "An old man sat at the end of the pier and watched the boats come in, one after another, until it was dark and "
    "the lamps along the harbour were lit.",
    "To replace the filter, switch the machine off and let it cool for ten minutes. Open the cover on the left, pull "
    "the old filter out by its tab, and push the new one in until it clicks. Close the cover and run the machine once "
    "without anything in it.",
)
LONGEST = 600  # tokens: the long text is beyond the limits that servers have by default, up to 512


def long_text(tokenizer: PreTrainedTokenizerBase, limit: int) -> str:
    """Return a text of more than `limit` tokens, no part of which repeats another."""
    text = ""
    for number in count(1):
        text += f"Part {number} of a long text has the number {number}, and {number * number} is its square. "
        if len(text) > limit and len(tokenizer(text, add_special_tokens=False)["input_ids"]) > limit:
            break
    return text


def passport_texts(tokenizer: PreTrainedTokenizerBase, limit: int) -> list[str]:
    """Return the texts of a passport: those that faults are computed on first, and one beyond the limit last.

    With a limit above `LONGEST` tokens, the last text is beyond that only.
    """
    others = [text for text in REFERENCE_TEXTS if text not in CHOSEN and len(text) < 100]
    return [*CHOSEN, *others, *PLAIN, long_text(tokenizer, min(limit, LONGEST))]
