"""`embrew data show`: training data as it was read, and as the model sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rich.padding import Padding
from rich.text import Text

from embrew.cli.arguments import Overrides, RecipeName
from embrew.cli.console import Record, out, print_line

if TYPE_CHECKING:
    from datasets import Dataset

    from embrew.encoder import Encoder
    from embrew.recipe import DataConfig

SAMPLE = 200
HEAD, TAIL = 40, 8  # tokens shown of a long run
STYLES = {
    "PROMPT": "cyan",
    "TEXT": "green",
    "ECHO": "bright_green",
    "MEMORY": "magenta",
    "SOFT": "yellow",
    "TARGET": "blue",
}
PATTERNS = {
    "causal": "causal: a token attends to itself and the tokens before it",
    "bidirectional": "bidirectional: every token attends to every token",
    "memory_causal": "memory_causal: text attends to all text, a memory token to text and the memory tokens before it",
}


class Column(NamedTuple):
    """The texts of one column, the instruction of each, and their limit in tokens."""

    name: str
    texts: list[str]
    instructions: list[str]
    limit: int


def show(recipe: RecipeName, overrides: Overrides = None) -> Record:
    """Show, for each stage, three rows as they were read and one example of each column as tokens."""
    from embrew.recipe import build

    loaded = build.load_recipe(recipe, overrides or ())
    if not loaded.stages:
        raise ValueError(f"{recipe} has no stages, so it has no training data to show")
    encoder = build.encoder(loaded)
    stages = []
    for stage in loaded.stages:
        out().rule(f"[bold]{stage.name}[/] ({stage.objective['type']})", align="left")
        objective, entries = build.objective(stage.objective), []
        for config in stage.datasets:
            sample = build.rows(config, objective, max_rows=min(SAMPLE, config.max_rows or SAMPLE))
            entries.append(_show(encoder, sample, config))
        stages.append({"stage": stage.name, "objective": stage.objective["type"], "data": entries})
    mode, over = loaded.encoder.pooling.mode, loaded.encoder.pooling.over
    print_line(f"attention  {PATTERNS[loaded.encoder.attention]}")
    print_line(f"pooling    {mode} over {over}; pooled positions are underlined")
    return {"attention": loaded.encoder.attention, "pooling": {"mode": mode, "over": over}, "stages": stages}


def _show(encoder: Encoder, rows: Dataset, config: DataConfig) -> Record:
    """Print a data set and return what is printed, without the tokens."""
    from embrew import data

    description = data.describe(rows)
    paths = config.path if isinstance(config.path, str) else ", ".join(config.path)
    out().print(Text(f"{paths}  {description['columns']}", style="bold"))
    for number, example in enumerate(description["examples"], start=1):
        out().print(Padding(Text(f"{number}. {data.row_text(example)}"), (0, 0, 0, 2)))
    lengths = []
    for column in columns(list(rows), encoder):
        encoded = encoder.template.rows(column.texts, instruction=column.instructions)
        tokens = [len(row.ids) for row in encoded]
        share = sum(length > column.limit for length in tokens) / len(tokens)
        lengths.append({"column": column.name, "longest": max(tokens), "limit": column.limit, "truncated": share})
        counted = f"{column.name}: up to {max(tokens)} tokens; {share:.1%} of {len(tokens)} texts exceed {column.limit}"
        out().print(Text(counted + (" and are truncated" if share else ""), style="yellow" if share else "dim"))
        for line in token_lines(encoder, column):
            out().print(Padding(line, (0, 0, 0, 2)))
    if config.max_tokens:
        out().print(Text(f"texts with more than {config.max_tokens} tokens are left out in training", style="dim"))
    print_line()
    return {"path": config.path, "tokens": lengths, "max_tokens": config.max_tokens, **description}


def columns(rows: Sequence[Record], encoder: Encoder) -> list[Column]:
    """Return the text columns of canonical rows, in the order in which they are encoded."""
    if "text" in rows[0]:
        return [Column("text", [row["text"] for row in rows], [""] * len(rows), encoder.max_seq_length)]
    prompts = [row["instruction"] if row["instruction"] is not None else encoder.prompts["query"] for row in rows]
    query = Column("query", [row["query"] for row in rows], prompts, encoder.max_length["query"])
    sides = {
        "positive": [row["positive"] for row in rows],
        "negatives": [negative for row in rows for negative in row["negatives"]],
    }
    prompt, limit = encoder.prompts["document"], encoder.max_length["document"]
    return [query, *(Column(name, texts, [prompt] * len(texts), limit) for name, texts in sides.items() if texts)]


def token_lines(encoder: Encoder, column: Column) -> Iterator[Text]:
    """Yield the first text of a column as tokens: one line per segment, pooled positions underlined."""
    from embrew.model.pooling import pooling_weights
    from embrew.text.tokens import Segment

    tokens = encoder.tokenize(column.texts[:1], instruction=column.instructions[:1], max_length=column.limit)
    pooled = (pooling_weights(encoder.pooling, tokens)[0] > 0).tolist()
    ids, segments = tokens.input_ids[0].tolist(), tokens.segment_ids[0].tolist()
    for segment, run in groupby(range(len(ids)), key=lambda position: segments[position]):
        positions, name = list(run), Segment(segment).name
        words: list[str | tuple[str, str]] = []
        for position in positions:
            style = STYLES.get(name, "") + (" underline" if pooled[position] else "")
            words += [(token_text(encoder, ids[position]), style), " "]
        hidden = len(positions) - HEAD - TAIL
        if hidden > 0:
            words[2 * HEAD : -2 * TAIL] = [(f"… {hidden} more … ", "dim")]
        count = sum(pooled[position] for position in positions)
        note = f"← {'all' if count == len(positions) else count} pooled" if count else ""
        yield Text.assemble((f"{name:<6} {len(positions):>4}  ", "bold"), *words, (note, "dim"))


def token_text(encoder: Encoder, token: int) -> str:
    """Return a token as text: spaces as `·`, line ends as `⏎`, memory tokens by number."""
    vocabulary = encoder.backbone.vocab_size
    if token >= vocabulary:
        return f"<memory {token - vocabulary}>"
    return str(encoder.tokenizer.decode([token])).replace(" ", "·").replace("\n", "⏎") or f"<{token}>"
