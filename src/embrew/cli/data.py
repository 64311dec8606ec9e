"""`embrew data`: what was understood of training data and what the model sees of it; test data for offline use."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from embrew.cli.arguments import Model, Overrides
from embrew.cli.console import out
from embrew.cli.recipe import Name

if TYPE_CHECKING:
    from datasets import Dataset

    from embrew.modeling.encoder import Encoder
    from embrew.recipe import DataConfig

app = typer.Typer(no_args_is_help=True)
SAMPLE = 200
EXAMPLES = 20  # of mined negatives
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
    "causal": "causal: a token reads itself and what stands before it",
    "bidirectional": "bidirectional: every token reads every token",
    "memory_causal": "memory_causal: text reads all text, a memory token reads text and the memory tokens before it",
}


class Column(NamedTuple):
    """The texts of one column, each with what fills its `{instruction}`, and their limit in tokens."""

    name: str
    texts: list[str]
    instructions: list[str]
    limit: int


@app.callback()
def _group() -> None:
    """Look at training data as the model will see it; find hard negatives; fetch test data."""


@app.command()
def fetch(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A shipped suite's name or a YAML file.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="What evaluate --suite takes as --data, elsewhere.")],
) -> None:
    """Load a suite's data of MTEB and of the Hub into a folder, on a machine with a network."""
    from embrew.data.hotpotqa import keep
    from embrew.evaluation.mteb_tasks import fetch as fetch_tasks
    from embrew.evaluation.suites import fetchable

    tasks, sources, local = fetchable(suite)
    if not tasks and not sources:
        raise ValueError(
            f"suite {suite} has no task of MTEB or the Hub; its folders ({', '.join(local)}) are yours to bring"
        )
    console = out()
    for task, now in fetch_tasks(tasks, to):
        console.print(f"{task.name}: {'fetched' if now else 'there already'}", markup=False)
    for source in sources:
        console.print(
            f"{source.path}: {'fetched' if keep(source, to / source.folder) else 'there already'}", markup=False
        )
    if local:
        console.print(f"not fetched, since they are yours to bring: {', '.join(local)}", markup=False)
    console.print(f"elsewhere: embrew evaluate MODEL --suite {suite} --data {to}", markup=False, soft_wrap=True)


@app.command()
def mine(
    model: Model,
    pairs: Annotated[str, typer.Argument(metavar="PAIRS", help="File, folder or data set of pairs.")],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT.jsonl", help="Pairs with their negatives, as training data.")
    ],
    corpus: Annotated[
        str | None, typer.Option(metavar="PATH", help="Documents to search; by default the positives of all pairs.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="OURS=THEIRS", help="A column of PAIRS, e.g. query=question.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of a folder or data set.")] = "train",
    max_rows: Annotated[int | None, typer.Option(min=1, help="Take a sample of so many pairs.")] = None,
    num_negatives: Annotated[int, typer.Option(min=1, help="At most so many a pair.")] = 5,
    relative_margin: Annotated[
        float, typer.Option(min=0, max=1, help="Take texts below (1 - this) times the positive's similarity.")
    ] = 0.05,
    max_score: Annotated[float | None, typer.Option(help="No negative above this similarity.")] = None,
    range_min: Annotated[int, typer.Option(min=0, help="Leave out so many of the nearest.")] = 0,
    range_max: Annotated[int | None, typer.Option(min=1, help="Look at so many of the nearest.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sample and of the examples shown.")] = 42,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and stop.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUTPUT if it is there.")] = False,
) -> None:
    """Find hard negatives for pairs; show twenty of them and how similar they are, then write them."""
    if output.exists() and not (overwrite or dry_run):
        raise FileExistsError(f"{output} exists; give another file, or --overwrite to replace it")
    columns = dict(part.split("=", 1) for part in column or () if "=" in part)
    if len(columns) < len(column or ()):
        raise ValueError(f"--column {' '.join(column or ())}: give OURS=THEIRS, e.g. query=question")
    if split == "test":
        raise ValueError("--split test: mined rows are training data, and a test split is not; give another split")
    from embrew.build import open_model
    from embrew.data.datasets import load
    from embrew.data.documents import read_documents
    from embrew.data.negatives import mine as find
    from embrew.files.writing import write_jsonl

    rows = load(pairs, kind="pairs", split=split, columns=columns, max_rows=max_rows, shuffle_seed=seed)
    documents = [document.content for document in read_documents(corpus)] if corpus else None
    found = find(
        open_model(model),
        rows,
        corpus=documents,
        num_negatives=num_negatives,
        relative_margin=relative_margin,
        max_score=max_score,
        range_min=range_min,
        range_max=range_max,
    )
    console = out()
    for row in random.Random(seed).sample(found.rows, min(EXAMPLES, len(found.rows))):
        console.print(Text(_short(row["query"]), style="bold"), no_wrap=True)
        for kind, text, score in zip(
            ("+", *"-" * len(row["negatives"])), (row["positive"], *row["negatives"]), row["scores"], strict=True
        ):
            style = "green" if kind == "+" else "red"
            console.print(Text(f"  {kind} {score:.3f}  {_short(text)}", style=style), no_wrap=True)
    console.print(_histogram(*found.scores()))
    counts = sum(len(row["negatives"]) for row in found.rows)
    said = f"{counts:,} negatives for {len(found.rows):,} pairs; {found.without:,} pairs have none and are left out"
    if dry_run:
        console.print(f"{said}; nothing written", markup=False, soft_wrap=True)
        return
    write_jsonl(output, found.rows)
    console.print(f"{said}: {output}", markup=False, soft_wrap=True)


def _short(text: str, width: int = 110) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def _histogram(positive: Sequence[float], negative: Sequence[float], *, bins: int = 12, width: int = 30) -> Table:
    """How often each similarity occurs, positives beside negatives; the bars are shares of their own kind."""
    import numpy as np

    edges = np.linspace(min(*positive, *negative), max(*positive, *negative), bins + 1)
    shares = [np.histogram(scores, edges)[0] / len(scores) for scores in (positive, negative)]
    table = Table("similarity", "positives", "negatives", box=None, title="share of the pairs by similarity")
    longest = max(float(share.max()) for share in shares)
    for low, high, *both in zip(edges, edges[1:], *shares, strict=False):
        bars = ["█" * round(width * share / longest) + f" {share:.0%}" for share in both]
        table.add_row(f"{low:.2f} to {high:.2f}", Text(bars[0], style="green"), Text(bars[1], style="red"))
    return table


@app.command()
def show(recipe: Name, overrides: Overrides = None) -> None:
    """Show, for each stage, three rows as they were understood and one example of each column as tokens."""
    from embrew import build
    from embrew.recipe import Recipe

    loaded = Recipe.load(recipe, overrides or ())
    if not loaded.stages:
        raise ValueError(f"{recipe} has no stages, so there is no data to show")
    encoder = build.encoder(loaded)
    console = out()
    for stage in loaded.stages:
        console.rule(f"[bold]{stage.name}[/] ({stage.objective['type']})", align="left")
        objective = build.objective(stage.objective)
        for config in stage.datasets:
            sample = build.rows(config, objective, max_rows=min(SAMPLE, config.max_rows or SAMPLE))
            _show(console, encoder, sample, config)
    mode, over = loaded.encoder.pooling.mode, loaded.encoder.pooling.over
    console.print(f"attention  {PATTERNS[loaded.encoder.attention]}")
    console.print(f"pooling    {mode} over {over}; pooled positions are underlined")


@app.command("overlap")
def overlap_(recipe: Name, overrides: Overrides = None) -> None:
    """Count the training rows that hold a text of the recipe's dev and guard sets; training says it too."""
    from embrew import build
    from embrew.data.overlap import in_words, known_texts, overlap
    from embrew.data.reading import public_name
    from embrew.evaluation.dev import dev_sets
    from embrew.recipe import Recipe

    loaded = Recipe.load(recipe, overrides or ())
    if not loaded.stages or loaded.evaluation is None:
        raise ValueError(f"{recipe} has no {'evaluation' if loaded.stages else 'stages'}, so there is no overlap")
    known = known_texts(dev_sets(loaded.evaluation.dev, loaded.evaluation.guard).texts())
    for stage in loaded.stages:
        for config in stage.datasets:
            rows = build.rows(config, build.objective(stage.objective), max_rows=config.max_rows)
            paths = [config.path] if isinstance(config.path, str) else config.path
            name = ", ".join(public_name(path)[0] for path in paths)
            for line in in_words(name, len(rows), overlap(rows, known)):
                out().print(f"{stage.name}: {line}", markup=False, soft_wrap=True)


def _show(console: Console, encoder: Encoder, rows: Dataset, config: DataConfig) -> None:
    from embrew import data

    found = data.describe(rows)
    paths = config.path if isinstance(config.path, str) else ", ".join(config.path)
    console.print(Text(f"{paths}  {found['columns']}", style="bold"))
    for number, example in enumerate(found["examples"], start=1):
        said = "; ".join(f"{name}: {value!r}" for name, value in example.items() if value not in (None, []))
        console.print(Padding(Text(f"{number}. {said}"), (0, 0, 0, 2)))
    for column in columns(list(rows), encoder):
        whole = encoder.template.rows(column.texts, instruction=column.instructions)
        lengths = [len(row.ids) for row in whole]
        cut = sum(length > column.limit for length in lengths) / len(lengths)
        said = f"{column.name}: {max(lengths)} tokens at most, {cut:.1%} of {len(lengths)} longer than {column.limit}"
        console.print(Text(said + (" and cut" if cut else ""), style="yellow" if cut else "dim"))
        for line in token_lines(encoder, column):
            console.print(Padding(line, (0, 0, 0, 2)))
    if config.max_tokens:
        console.print(Text(f"texts of more than {config.max_tokens} tokens are left out in training", style="dim"))
    console.print()


def columns(rows: Sequence[dict[str, Any]], encoder: Encoder) -> list[Column]:
    """The text columns of canonical rows, in the order they are encoded."""
    if "text" in rows[0]:
        texts = [row["text"] for row in rows]
        return [Column("text", texts, [""] * len(texts), encoder.max_seq_length)]
    prompts = [row["instruction"] if row["instruction"] is not None else encoder.prompts["query"] for row in rows]
    negatives = [negative for row in rows for negative in row["negatives"]]
    found = [
        Column("query", [row["query"] for row in rows], prompts, encoder.max_length["query"]),
        Column("positive", [row["positive"] for row in rows], [], encoder.max_length["document"]),
        Column("negatives", negatives, [], encoder.max_length["document"]),
    ]
    return [
        column._replace(instructions=column.instructions or [encoder.prompts["document"]] * len(column.texts))
        for column in found
        if column.texts
    ]


def token_lines(encoder: Encoder, column: Column) -> Iterator[Text]:
    """The first text of a column as tokens: a line for each run of one segment, pooled positions underlined."""
    from embrew.modeling.text.tokens import Segment

    tokens = encoder.tokens(column.texts[:1], instruction=column.instructions[:1], max_length=column.limit)
    pooled = (encoder.pooling.weights(tokens)[0] > 0).tolist()
    ids, segments = tokens.input_ids[0].tolist(), tokens.segment_ids[0].tolist()
    for segment, run in groupby(range(len(ids)), key=lambda position: segments[position]):
        places = list(run)
        name = Segment(segment).name
        line = Text()
        line.append(f"{name:<6} {len(places):>4}  ", style="bold")
        hidden = len(places) - HEAD - TAIL
        for order, position in enumerate(places):
            if hidden > 0 and HEAD <= order < HEAD + hidden:
                if order == HEAD:
                    line.append(f"… {hidden} more … ", style="dim")
                continue
            style = STYLES.get(name, "") + (" underline" if pooled[position] else "")
            line.append(token_text(encoder, ids[position]), style=style)
            line.append(" ")
        count = sum(pooled[position] for position in places)
        if count:
            line.append(f"← {'all' if count == len(places) else count} pooled", style="dim")
        yield line


def token_text(encoder: Encoder, token: int) -> str:
    """A token as it can be read: blanks as `·`, line ends as `⏎`, memory tokens by number."""
    vocabulary = encoder.backbone.vocab_size
    if token >= vocabulary:
        return f"<memory {token - vocabulary}>"
    return str(encoder.tokenizer.decode([token])).replace(" ", "·").replace("\n", "⏎") or f"<{token}>"
