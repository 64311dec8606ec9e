"""The demonstration's parts in order."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from embrew.demo.estimate import Estimate, costs, measure
from embrew.demo.steps import ALL, chosen_share, fewer_steps, steps_of
from embrew.demo.table import markdown, plot, table
from embrew.harvest import harvest
from embrew.progress import is_chosen, within

if TYPE_CHECKING:
    from embrew.encoder import Encoder
    from embrew.recipe import Recipe

BASELINES = {"last token": "baselines/last-token", "mean": "baselines/mean"}
DOCUMENTS = {"test": 400, "dev": 100, "train": 120}  # of a package, at most
QUESTIONS = (
    "How do I find the shortest path between two nodes?",
    "split data into training and test sets",
    "print text in colour on a terminal",
)
"""Searched in the test packages' documentation (networkx, scikit-learn, rich, pydantic, fsspec)."""


def run(
    output: Path, recipe_name: str = "llm2comp/nano", overrides: tuple[str, ...] = (), share: float | None = None
) -> list[dict[str, Any]]:
    """Run the whole demonstration in one folder.

    Writes `steps.json` (the share of the steps), `data/` (the harvest), `model/` (the stages), `export/`
    (Sentence-Transformers), `index/`, `results/`, `table.md`, `scores.png`. What an earlier run has finished there is
    kept.

    Args:
        output: the folder.
        recipe_name: recipe to train.
        overrides: settings of the recipe.
        share: of the recipe's steps; None: what five minutes allow, or all where `overrides` set numbers of steps.

    Returns:
        The rows of the table.

    Raises:
        ValueError: five minutes do not allow a quarter of the steps, or the folder was begun with another share.
    """
    from embrew import assembly

    demo = Demonstration(output)
    os.environ["EMBREW_DEMO"] = str(demo.data.resolve())
    recipe = assembly.load_recipe(recipe_name, overrides)
    share = demo.begin(recipe, share, fit=not any(".max_steps=" in override for override in overrides))
    recipe = assembly.load_recipe(recipe_name, [*overrides, *fewer_steps(recipe, share)])
    demo.steps = steps_of(recipe, assembly.load_recipe(recipe_name))
    demo.collect()
    demo.score_untrained(recipe)
    demo.train(recipe, recipe_name)
    demo.score_stages(recipe)
    encoder = demo.reopen()
    demo.export(encoder)
    demo.search(encoder)
    demo.say_what_next()
    return demo.rows


class Demonstration:
    """One demonstration in one folder: what it has measured, and the time that is left."""

    def __init__(self, output: Path) -> None:
        self.output, self.data, self.test = output, output / "data", output / "data" / "test"
        self.console = Console(highlight=False)
        self.rows: list[dict[str, Any]] = []
        self.counts: Mapping[str, int] = {}
        self.steps: Mapping[str, str] = {}

    def begin(self, recipe: Recipe, share: float | None, *, fit: bool) -> float:
        """Measure this machine, say how long the demonstration takes on it, and return the share of steps to train."""
        self.console.print(
            f"embrew's demonstration, offline, in {self.output}; stopped, the same command resumes it", markup=False
        )
        self.console.print("   measuring this machine …")
        step = measure()
        share = chosen_share(recipe, self.output, step, share, fit=fit)
        self.left = Estimate(step, costs(recipe, self.output, share))
        steps = "all steps" if share == 1 else f"{share:.0%} of the steps"
        self.console.print(f"   {self.left} on this machine at its current load, with {steps} of training")
        return share

    def collect(self) -> None:
        """Collect the data."""
        self._head("1. Data", "the documentation of the Python packages installed here")
        with self.left.part("data"):
            if not self.data.exists():
                harvest(self.data, max_documents=DOCUMENTS)
        counts = json.loads((self.data / "manifest.json").read_text())
        self.console.print(
            f"   {_total(counts, 'train')} documents to train on, {_total(counts, 'test')} of other packages to "
            f"evaluate on ({', '.join(counts['test']['packages'])})"
        )

    def score_untrained(self, recipe: Recipe) -> None:
        """Score the language model before it is trained, in the arithmetic of the training."""
        from embrew import assembly
        from embrew.assembly.encoders import arithmetic
        from embrew.recipe import Recipe

        self._head("2. Before", "the untrained model with two kinds of pooling")
        lengths = recipe.encoder.max_length
        same = [f"encoder.max_length.query={lengths.query}", f"encoder.max_length.document={lengths.document}"]
        if arithmetic(recipe, recipe.stages[-1]) == "bfloat16":
            same.append("encoder.dtype=bfloat16")
        with self.left.part("before"):
            for label, name in BASELINES.items():
                figures = self._score(assembly.encoder(Recipe.load(name, same)), label.replace(" ", "-"))
                self.rows.append({"step": f"{recipe.encoder.model}, {label}", "seconds": None, **figures})

    def train(self, recipe: Recipe, name: str) -> None:
        """Train the recipe."""
        from embrew.evaluation import evaluate
        from embrew.training.stages import train

        def dev(encoder: Encoder) -> dict[str, float]:
            (result,) = evaluate(encoder, [self.data / "dev"], batch_tokens=4096, show_progress_bar=is_chosen())
            return {"dev": result.main_score}

        self._head("3. Training", f"{name}, stage by stage")
        model = self.output / "model"
        with self.left.part("training"):
            train(recipe, model, resume=model.exists(), evaluate=dev)

    def score_stages(self, recipe: Recipe) -> None:
        """Score the model after each stage, and show the table."""
        from embrew.encoder import Encoder
        from embrew.evaluation.report import size_of

        self._head("4. After", "each stage on the unseen packages")
        seconds = json.loads((self.output / "model" / "run.json").read_text())["seconds"]
        with self.left.part("after"):
            for stage in recipe.stages:
                figures = self._score(
                    Encoder.from_pretrained(self.output / "model" / stage.name, dtype="as_trained"), stage.name
                )
                label = f"LLM2Comp: {stage.name} ({self.steps[stage.name]})"
                self.rows.append({"step": label, "seconds": seconds[stage.name], **figures})
        data = f"Test split: {size_of(self.counts)} of packages that were not trained on"
        if any(steps.split()[0] != steps.split()[2] for steps in self.steps.values()):
            data += f". Not the recipe's numbers of steps, so not README's figures; for these: {ALL}"
        self.console.print(table(self.rows, data))
        (self.output / "table.md").write_text(markdown(self.rows, data))
        plot(self.rows, self.output / "scores.png")

    def reopen(self) -> Encoder:
        """Open the trained encoder as its user will."""
        from embrew.encoder import Encoder

        return Encoder.from_pretrained(self.output / "model")

    def export(self, encoder: Encoder) -> None:
        """Export the model for Sentence-Transformers."""
        from embrew.export.exporting import export_encoder

        self._head("5. Export", "a stock Sentence-Transformers folder, verified in a fresh process")
        with self.left.part("export"):
            export_encoder(encoder, self.output / "export", overwrite=True, max_length=encoder.max_seq_length)

    def search(self, encoder: Encoder) -> None:
        """Search the test packages' documentation."""
        from embrew.search import SearchIndex

        self._head("6. Search", "in the unseen packages")
        with self.left.part("search"):
            index = SearchIndex.build(encoder, self.test, batch_tokens=4096, show_progress_bar=is_chosen())
            index.save(self.output / "index", overwrite=True)
        for question, hits in zip(QUESTIONS, index.search(QUESTIONS, top_k=3), strict=True):
            self.console.print(f"\n  [bold cyan]{question}[/]")
            for hit in hits:
                text = hit.document.content
                line = f"    {hit.score:.2f}  [bold]{escape(_first_line(text))}[/]  {escape(_rest(text))}"
                self.console.print(line, soft_wrap=False)

    def say_what_next(self) -> None:
        """Say where the results are, and which commands to type next."""
        model, data = self.output / "model", self.data
        self.console.print(
            f"\nTable: {self.output / 'table.md'}   plot: {self.output / 'scores.png'}   "
            f"Sentence-Transformers folder: {self.output / 'export'}\n",
            soft_wrap=True,
        )
        self.console.print("[bold]What to type next[/]")
        for what, command in (
            ("ask your own question", f'embrew search {model} --index {self.output / "index"} "…"'),
            ("look inside the vectors", f"embrew analyze spectrum {model} --data {data / 'texts.jsonl'}"),
            ("see what this folder holds", f"embrew runs {self.output}"),
            ("make an encoder of your own documents", "embrew domain DOCS --output OUT"),
            ("find a recipe for a larger model", "embrew recipe list"),
        ):
            self.console.print(f"  {escape(command)}\n    {what}", soft_wrap=True)

    def _head(self, name: str, what: str) -> None:
        self.console.print(f"[bold]{name}[/]: {what} ({self.left} left)", soft_wrap=True)

    def _score(self, encoder: Encoder, name: str) -> dict[str, float]:
        from embrew.evaluation import evaluate

        options: Any = {"batch_tokens": 4096, "show_progress_bar": is_chosen()}
        with within(name):
            (result,) = evaluate(encoder, [self.test], output_dir=self.output / "results" / name, **options)
        self.counts = result.counts
        return {"ndcg_at_10": result.scores["ndcg_at_10"], "recall_at_10": result.scores["recall_at_10"]}


def _total(counts: dict[str, Any], part: str) -> int:
    return sum(package["documents"] for package in counts[part]["packages"].values())


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _rest(text: str, width: int = 90) -> str:
    rest = " ".join(text.partition("\n")[2].split())
    return rest if len(rest) <= width else rest[:width].rsplit(" ", 1)[0] + " …"
