"""Make a small training set and two test sets from the documentation of installed Python packages.

A query is the first sentence of a docstring; its document is the dotted name, the signature and the rest. Source files
are parsed, never imported, and nothing is downloaded, so that anyone with the dependencies of embrew can train and
evaluate an encoder in minutes. The split is by package: test documents are from packages that are not trained on.
"""

import ast
import inspect
import logging
import platform
import random
import re
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from embrew.data.sentences import SENTENCE_END
from embrew.files.checksums import write_checksums
from embrew.files.writing import atomic_folder, check_free, write_json, write_jsonl
from embrew.progress import is_chosen, progress

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SPLITS = ("test", "dev", "train")  # in the order in which they take documents
TEST_PACKAGES = ("networkx", "sklearn", "rich", "pydantic", "fsspec")
# Always installed: transformers needs huggingface_hub, torch needs jinja2, sentence-transformers needs scipy. A client
# of a service, a template language and numerical functions differ from the training data about as much as the test
# packages.
DEV_PACKAGES = ("huggingface_hub", "jinja2", "scipy")
# embrew itself; packages that carry the documentation of a test package or consist of test code.
EXCLUDED = {
    "embrew",
    "pydantic_core",
    "pydantic_settings",
    "pydantic_extra_types",
    "rich_click",
    "rich_toolkit",
    "test",
}
_SKIPPED_FOLDERS = re.compile(
    r"tests?|testing|_.*|vendor|vendored|extern|externals|third_party|site-packages|examples?|benchmarks?|"
    r"lib2to3|idlelib|conftest|deprecated|v1",
)
_STOP_WORDS = frozenset(
    "a an the of for to in on and or is are be by with this that it its as from return returns get gets set".split()  # noqa: SIM905
)
_DIRECTIVE = re.compile(r"^\s*\.\. (\w[\w-]*)::\s*(.*)$")
_UNDERLINE = re.compile(r"^\s*([-=~^*#\"'`.])\1{2,}\s*$")
_MARKUP = re.compile(r"[:`*|\[\\]")
_SECTION = re.compile(r"^\s*(Examples?|References|See Also|Doctest|Usage Examples?)\s*:?\s*$", re.IGNORECASE)
_FIELD = re.compile(r"^\s*:(param|type|rtype|returns?|raises?|var|ivar|keyword)\b")
_ADMONITION = re.compile(r"^\s*(!!!|\?\?\?\+?) ")  # of MkDocs


@dataclass(frozen=True)
class Package:
    """An importable top-level name: its source, and the version of its distribution."""

    name: str
    path: Path
    version: str


@dataclass(frozen=True)
class Documented:
    """A public module, class or function: dotted name, signature (empty for modules) and cleaned docstring.

    `summary` is the docstring's first sentence and `rest` what follows, each on one line.
    """

    name: str
    signature: str
    docstring: str
    summary: str
    rest: str


def harvest(
    output: str | Path,
    *,
    seed: int = 42,
    overwrite: bool = False,
    max_documents: int | Mapping[str, int] = 400,
    max_pairs: int = 10_000,
    max_queries: int = 500,
    packages: Sequence[Package] | None = None,
) -> dict[str, Any]:
    """Write `texts.jsonl`, `pairs.jsonl`, `dev/` and `test/` (BEIR folders) and `manifest.json` into `output`.

    Args:
        output: output folder.
        seed: random seed of all samples.
        overwrite: replace the folder's content.
        max_documents: maximum documents per package: one number, or one for each of `test`, `dev` and `train`.
        max_pairs: maximum training pairs.
        max_queries: maximum queries of a test set.
        packages: default: all installed packages and the standard library.

    Returns:
        The manifest: counts per package, versions, settings.
    """
    folder = Path(output)
    check_free(folder, marker=MANIFEST, overwrite=overwrite)
    packages = sorted(packages if packages is not None else installed_packages(), key=lambda package: package.name)
    limits = max_documents if isinstance(max_documents, Mapping) else dict.fromkeys(SPLITS, max_documents)
    names = {package.name for package in packages}
    for name in (*TEST_PACKAGES, *DEV_PACKAGES):
        if name not in names:
            logger.warning("package %s is not installed; the %s set is made without it", name, _split(name))
    chosen, unread = _read(packages, limits, seed=seed)
    if not chosen["train"] or not chosen["test"]:
        raise ValueError("no documentation for training or for the test; install packages with their source files")
    pairs = [(package, entry) for package, entries in chosen["train"].items() for entry in entries]
    random.Random(f"{seed}:pairs").shuffle(pairs)
    pairs, versions = pairs[:max_pairs], {package.name: package.version for package in packages}
    with atomic_folder(folder, marker=MANIFEST, overwrite=overwrite) as new:
        rows = ({"query": e.summary, "positive": document_text(e), "source": package} for package, e in pairs)
        write_jsonl(new / "pairs.jsonl", rows)
        write_jsonl(new / "texts.jsonl", ({"text": raw_text(e), "source": package} for package, e in pairs))
        manifest: dict[str, Any] = {
            "made_of": "docstrings of installed Python packages, read with ast",
            "seed": seed,
            "max_documents": dict(limits),
            "train": _counts(Counter(package for package, _ in pairs), versions) | {"pairs": len(pairs)},
            "files_not_parsed": dict(sorted(unread.items())),
        }
        for split in ("dev", "test"):
            entries = [entry for package in chosen[split].values() for entry in package]
            queries = _write_beir(new / split, split, entries, seed=seed, max_queries=max_queries)
            counts = Counter({name: len(entries) for name, entries in chosen[split].items()})
            manifest[split] = _counts(counts, versions) | {"documents": len(entries), "queries": queries}
        write_json(new / MANIFEST, manifest)
        write_checksums(new)
    logger.info("harvested %d pairs from %d packages into %s", len(pairs), len(chosen["train"]), folder)
    return manifest


def _read(
    packages: Sequence[Package], limits: Mapping[str, int], *, seed: int
) -> tuple[dict[str, dict[str, list[Documented]]], Counter[str]]:
    """Return the entries that are taken, by split and package, and how many files cannot be parsed, by package."""
    unread: Counter[str] = Counter()
    used: set[str] = set()  # normalised queries, over all splits: no document is both tested and trained on
    chosen: dict[str, dict[str, list[Documented]]] = {split: {} for split in SPLITS}
    with progress(len(packages), "read", "package", show=is_chosen()) as bar:
        for split in SPLITS:
            for package in [package for package in packages if _split(package.name) == split]:
                entries = _choose(package, used, unread, seed=seed, limit=limits[split])
                if entries:
                    chosen[split][package.name] = entries
                bar.update()
    return chosen, unread


def installed_packages() -> list[Package]:
    """Return the importable top-level packages and modules of this environment and of the standard library."""
    paths = sysconfig.get_paths()
    distributions = metadata.packages_distributions()
    packages: dict[str, Package] = {}
    for place in dict.fromkeys(Path(paths[key]) for key in ("stdlib", "purelib", "platlib")):
        for path in sorted(place.iterdir()) if place.is_dir() else []:
            name = path.stem
            is_source = path.suffix == ".py" or (path / "__init__.py").is_file()
            if not is_source or not name.isidentifier() or _SKIPPED_FOLDERS.fullmatch(name) or name in EXCLUDED:
                continue
            if place == Path(paths["stdlib"]):
                version = platform.python_version()
            elif name in distributions:
                version = metadata.version(min(distributions[name]))
            else:
                continue  # belongs to no distribution: an editable hook or a stray file
            packages.setdefault(name, Package(name, path, version))
    return sorted(packages.values(), key=lambda package: package.name)


def document_text(entry: Documented, *, limit: int = 1500) -> str:
    """Return name, signature and the docstring without its first sentence, truncated at a word boundary."""
    text = f"{entry.name}\n{entry.signature}\n{entry.rest}" if entry.signature else f"{entry.name}\n{entry.rest}"
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0]


def raw_text(entry: Documented) -> str:
    """Return signature and full docstring, for stages that learn from text."""
    return f"{entry.signature or entry.name}\n{entry.docstring}"


def is_useful(entry: Documented) -> bool:
    """Return whether the first sentence is a useful query for the rest."""
    words = re.findall(r"[A-Za-z]{2,}", entry.summary)
    content = {word.lower() for word in words} - _STOP_WORDS
    named = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", entry.name)}
    letters = sum(character.isalpha() or character.isspace() for character in entry.summary)
    return (
        4 <= len(words) <= 40
        and len(re.findall(r"\w+", entry.rest)) >= 8
        and len(content - named) >= 2  # says more than the name does
        and letters >= 0.75 * len(entry.summary)
        and entry.summary.isascii()
        and entry.summary[0].isalpha()
        and not re.match(
            r"(same as|see|alias|undocumented|internal|base class|wrapper|usage|example|todo)\b", entry.summary, re.I
        )
        and not re.search(r"https?://|::|>>>|[{}<>|=]{2}|^:|:$", entry.summary)
        and entry.summary.rstrip(".").lower() not in entry.rest.lower()
    )


def _choose(package: Package, used: set[str], unread: Counter[str], *, seed: int, limit: int) -> list[Documented]:
    """Return at most `limit` useful entries, from files in random order, until there are enough to choose from."""
    files = sorted(source_files(package.path))
    order = random.Random(f"{seed}:{package.name}")
    order.shuffle(files)
    entries: list[Documented] = []
    for file, module in files:
        try:
            candidates = [entry for entry in documented(file, module) if is_useful(entry)]
        except (SyntaxError, ValueError, RecursionError):
            unread[package.name] += 1
            continue
        for entry in candidates:
            key = _key(entry.summary)
            if key not in used and _key(entry.rest) not in used:
                used |= {key, _key(entry.rest)}
                entries.append(entry)
        if len(entries) >= 1.5 * limit:
            break
    order.shuffle(entries)
    return sorted(entries[:limit], key=lambda entry: entry.name)


def source_files(path: Path, module: str | None = None) -> Iterator[tuple[Path, str]]:
    """Yield the source files of a package with module names, without tests, vendored copies and private folders."""
    module = module or path.stem
    if path.is_file():
        yield path, module
        return
    for child in sorted(path.iterdir()):
        if child.is_dir() and child.name.isidentifier() and not _SKIPPED_FOLDERS.fullmatch(child.name):
            yield from source_files(child, f"{module}.{child.name}")
        elif child.name == "__init__.py":
            yield child, module
        elif child.suffix == ".py" and not re.match(r"(test_|conftest|setup)|.*_test$", child.stem):
            yield child, f"{module}.{child.stem}"


def _write_beir(folder: Path, split: str, entries: Sequence[Documented], *, seed: int, max_queries: int) -> int:
    """Write a corpus of all entries, and a random sample of queries, each with one relevant document."""
    numbers = sorted(random.Random(f"{seed}:{split}").sample(range(len(entries)), min(max_queries, len(entries))))
    corpus = ({"_id": f"d{i}", "title": "", "text": document_text(entry)} for i, entry in enumerate(entries))
    write_jsonl(folder / "corpus.jsonl", corpus)
    write_jsonl(folder / "queries.jsonl", ({"_id": f"q{i}", "text": entries[i].summary} for i in numbers))
    (folder / "qrels").mkdir()
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in numbers)]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(numbers)


def _split(package: str) -> str:
    return "test" if package in TEST_PACKAGES else "dev" if package in DEV_PACKAGES else "train"


def _counts(counts: Counter[str], versions: dict[str, str]) -> dict[str, Any]:
    return {"packages": {name: {"documents": counts[name], "version": versions[name]} for name in sorted(counts)}}


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def documented(path: Path, module: str) -> Iterator[Documented]:
    """Return the documented public names of a source file.

    Raises:
        SyntaxError, UnicodeDecodeError, ValueError, RecursionError: The file cannot be parsed.
    """
    with tokenize.open(path) as file:  # respects the coding line
        source = file.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in strings
        tree = ast.parse(source)
    module = ".".join(part for part in module.split(".") if not part.startswith("_"))
    yield from _entry(tree, module, "")
    yield from _members(tree, module)


def _members(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Documented]:
    for member in node.body:
        if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or member.name.startswith("_"):
            continue
        name = f"{prefix}.{member.name}"
        if isinstance(member, ast.ClassDef):
            init = next((n for n in member.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
            yield from _entry(member, name, _signature(member.name, init, bound=True) if init else member.name)
            yield from _members(member, name)
            continue
        decorators = {ast.unparse(decorator).split("(")[0].split(".")[-1] for decorator in member.decorator_list}
        if decorators & {"overload", "setter", "deleter", "deprecated"}:
            continue
        if decorators & {"property", "cached_property"}:
            yield from _entry(member, name, member.name)
        else:
            bound = isinstance(node, ast.ClassDef) and "staticmethod" not in decorators
            yield from _entry(member, name, _signature(member.name, member, bound=bound))


def _entry(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str, signature: str
) -> Iterator[Documented]:
    raw = ast.get_docstring(node, clean=False)
    if raw and not re.search(r"deprecated|copyright|licen[cs]ed? (under|to)|\bTODO\b|SPDX", raw, re.IGNORECASE):
        text = clean(raw)
        if text:
            yield Documented(name, signature, text, *split_summary(text))


def _signature(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool, limit: int = 200) -> str:
    """`name(argument, other=default)`, without annotations, `self` or private arguments; long ones are truncated."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [_argument(a, d) for a, d in list(zip(positional, defaults, strict=True))[bound:]]
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    parts += [_argument(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    text = ""
    for part in (part for part in parts if not part.startswith("_")):
        if len(text) + len(part) > limit:
            return f"{name}({text}, ...)"
        text += f", {part}" if text else part
    return f"{name}({text})"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return argument.arg
    value = ast.unparse(default)
    return f"{argument.arg}={value if len(value) <= 20 else '...'}"


def clean(docstring: str) -> str:
    r"""Return a docstring without doctests, examples, references, reST directives, roles, underlines and links.

    Examples:
        >>> clean("Sort ``x``.\n\n    >>> sort([2, 1])\n    [1, 2]\n\n.. versionadded:: 1.2\n")
        'Sort x.'
    """
    prose: list[str] = []
    lines = inspect.cleandoc(docstring).expandtabs().split("\n")
    skip_block: int | None = None  # inside a directive or a doctest: its indentation
    skip_section: int | None = None  # inside a section such as Examples: its indentation
    underlined = doctest = fenced = False
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if fenced:
            continue
        if not line.strip():
            doctest = False
            prose.append("")
            continue
        if skip_section is not None:
            heading = _UNDERLINE.match(following) if underlined else re.match(r"^\s*[A-Z][\w ]+:\s*$", line)
            if indent > skip_section or (indent == skip_section and not heading) or _SECTION.match(line):
                continue
            skip_section = None
        if _SECTION.match(line) and (line.rstrip().endswith(":") or _UNDERLINE.match(following)):
            skip_section, underlined = indent, bool(_UNDERLINE.match(following))
            continue
        if skip_block is not None and indent > skip_block:
            continue
        skip_block = None
        if doctest or line.lstrip().startswith((">>>", "In [", "$ ")):
            doctest = True
            continue
        directive = _DIRECTIVE.match(line)
        if directive:
            if directive[1] in ("note", "warning", "seealso", "important", "tip", "caution", "hint"):
                prose.append(directive[2])
            else:
                skip_block = indent
            continue
        if line.lstrip().startswith((".. ", ":type ", ":rtype:", ":meta ")) or _ADMONITION.match(line):
            skip_block = indent
            continue
        if _UNDERLINE.match(line):
            if prose and prose[-1] and not prose[-1].endswith(":"):
                prose[-1] += ":"
            continue
        prose.append(_inline(line.rstrip()))
    text = "\n".join(prose)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _inline(line: str) -> str:
    """Replace inline markup by plain words and fields by `name: text`; remove addresses."""
    if not _MARKUP.search(line):
        return line
    line = re.sub(r"^(\s*):(?:param|var|ivar|keyword) (?:[\w.]+ )?([\w*]+):", r"\1\2:", line)
    line = re.sub(r"^(\s*):(returns?|raises?)\b\s*:?", lambda m: f"{m[1]}{m[2].capitalize()}:", line)
    line = re.sub(r":[\w:+-]+:`[~!]?([^`<]*?)(?:\s*<[^`>]*>)?`", r"\1", line)  # :func:`~a.b`
    line = re.sub(r"`([^`<]+?)\s*<[^`>]+>`_*", r"\1", line)  # `text <url>`_
    line = re.sub(r"\[`?([^\]`]+)`?\](?:\([^)]*\)|\[[^\]]*\])", r"\1", line)  # [text](url), [text][name]
    line = re.sub(r"\[`?~?([\w.]+)`?\](?!\w)", r"\1", line) if "[`" in line else line  # [`Name`]
    line = re.sub(r"\s?\[\d+\]_", "", line)  # [1]_
    line = re.sub(r"`{1,2}~?([^`]*)`{1,2}_?", r"\1", line)
    line = re.sub(r"(?<!\w)(\*{1,2}|\|)(\w[^*|]*?)\1(?!\w)", r"\2", line)  # *emphasis*, |substitution|
    line = re.sub(r"::\s*$", ":", line)
    line = re.sub(r"\s?<?https?://\S+", "", line).rstrip()
    return line.replace("\\", "") if re.search(r"\\[*_`|]", line) else line


def split_summary(docstring: str) -> tuple[str, str]:
    """Return the first sentence of the first paragraph, and the rest, each on one line."""
    paragraph, _, rest = docstring.partition("\n\n")
    lines = paragraph.split("\n")
    for number, line in enumerate(lines):
        if number and (
            _FIELD.match(line) or re.match(r"^\s*(Args|Arguments|Parameters|Returns?|Raises|Yields)\b", line)
        ):
            paragraph, rest = "\n".join(lines[:number]), "\n".join([*lines[number:], rest])
            break
    paragraph, rest = _one_line(paragraph), _one_line(rest)
    end = SENTENCE_END.search(paragraph)
    if end:
        return paragraph[: end.end()], f"{paragraph[end.end() :]} {rest}".strip()
    return paragraph, rest


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
