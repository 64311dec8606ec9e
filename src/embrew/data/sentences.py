"""Split texts into sentences by rules, without a model."""

import re

# A full stop, question or exclamation mark before a capital, a digit or a quotation mark; not after an abbreviation.
SENTENCE_END = re.compile(
    r"(?<![Ee]\.g)(?<!i\.e)(?<!etc)(?<!vs)(?<!cf)(?<!resp)(?<!al)(?<!approx)(?<!Eq)[.!?](?=\s+[\"'(A-Z0-9])"
)
_TITLE = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Sen|Rep|Gov|Jr|Sr|No|vol|ed|pp)\.$")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order; a line break also ends one.

    Examples:
        >>> split_sentences("Dr. Ada Lovelace wrote it. Who read it? J. Smith did, i.e. someone.")
        ['Dr. Ada Lovelace wrote it.', 'Who read it?', 'J. Smith did, i.e. someone.']
    """
    sentences = []
    for line in text.splitlines():
        start = 0
        for end in SENTENCE_END.finditer(line):
            if not _TITLE.search(line, start, end.end()):
                sentences.append(line[start : end.end()].strip())
                start = end.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]
