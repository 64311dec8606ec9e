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
    return [text[start:end] for start, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return where each sentence of a text begins and ends, in characters, without the blanks around it.

    Examples:
        >>> sentence_spans("Who read it? Someone did.")
        [(0, 12), (13, 25)]
    """
    spans, line_start = [], 0
    for line in text.splitlines(keepends=True):
        start = 0
        ends = []
        for end in SENTENCE_END.finditer(line):
            if not _TITLE.search(line, start, end.end()):
                ends.append(end.end())
                start = end.end()
        for begin, end_of in zip([0, *ends], [*ends, len(line)], strict=True):
            sentence = line[begin:end_of].strip()
            if sentence:
                first = line_start + line.index(sentence, begin)
                spans.append((first, first + len(sentence)))
        line_start += len(line)
    return spans
