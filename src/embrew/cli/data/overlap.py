"""`embrew data overlap`: training rows that hold a text of an evaluation set."""

from __future__ import annotations

from embrew.cli.arguments import AsJson, Overrides, RecipeName
from embrew.cli.console import print_json, print_line


def overlap(recipe: RecipeName, overrides: Overrides = None, *, as_json: AsJson = False) -> None:
    """Count the training rows that hold a text of the recipe's dev and guard sets; training logs the same counts."""
    from embrew.data.reading import public_name
    from embrew.evaluation.dev import dev_sets
    from embrew.evaluation.overlap import count_overlaps, hash_texts, overlap_lines
    from embrew.recipe import build

    loaded = build.load_recipe(recipe, overrides or ())
    if not loaded.stages or loaded.evaluation is None:
        raise ValueError(f"{recipe} has no {'evaluation' if loaded.stages else 'stages'}; overlap needs both")
    evaluation_texts = hash_texts(dev_sets(loaded.evaluation.dev, loaded.evaluation.guard).texts())
    entries = []
    for stage in loaded.stages:
        for config in stage.datasets:
            rows = build.rows(config, build.objective(stage.objective), max_rows=config.max_rows)
            name = ", ".join(public_name(path)[0] for path in config.paths)
            counts = count_overlaps(rows, evaluation_texts)
            for line in overlap_lines(name, len(rows), counts):
                print_line(f"{stage.name}: {line}")
            entries.append({"stage": stage.name, "data": name, "rows": len(rows), "overlap": counts})
    print_json({"recipe": recipe, "data": entries})
