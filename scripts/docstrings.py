"""Documentation of installed Python packages: names, signatures and docstrings, read from their source files.

Source files are parsed, never imported.
"""

import ast
import inspect
import platform
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# Packages whose documentation nano was not trained on: `make demo` searches in the first five.
HELD_OUT = ("networkx", "sklearn", "rich", "pydantic", "fsspec", "huggingface_hub", "jinja2", "scipy")
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
_DIRECTIVE = re.compile(r"^\s*\.\. (\w[\w-]*)::\s*(.*)$")
_UNDERLINE = re.compile(r"^\s*([-=~^*#\"'`.])\1{2,}\s*$")
_MARKUP = re.compile(r"[:`*|\[\\]")
_SECTION = re.compile(r"^\s*(Examples?|References|See Also|Doctest|Usage Examples?)\s*:?\s*$", re.IGNORECASE)
_ADMONITION = re.compile(r"^\s*(!!!|\?\?\?\+?) ")  # of MkDocs


@dataclass(frozen=True)
class Package:
    """An importable top-level name: its source, and the version of its distribution."""

    name: str
    path: Path
    version: str


@dataclass(frozen=True)
class Documented:
    """A public module, class or function: dotted name, signature (empty for modules) and cleaned docstring."""

    name: str
    signature: str
    docstring: str


def installed_packages() -> list[Package]:
    """Return the importable top-level packages and modules of this environment and of the standard library."""
    paths = sysconfig.get_paths()
    distributions = metadata.packages_distributions()
    packages: dict[str, Package] = {}
    for folder in dict.fromkeys(Path(paths[key]) for key in ("stdlib", "purelib", "platlib")):
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            name = path.stem
            is_source = path.suffix == ".py" or (path / "__init__.py").is_file()
            if not is_source or not name.isidentifier() or _SKIPPED_FOLDERS.fullmatch(name) or name in EXCLUDED:
                continue
            if folder == Path(paths["stdlib"]):
                version = platform.python_version()
            elif name in distributions:
                version = metadata.version(min(distributions[name]))
            else:
                continue  # belongs to no distribution: an editable hook or a stray file
            packages.setdefault(name, Package(name, path, version))
    return sorted(packages.values(), key=lambda package: package.name)


def raw_text(entry: Documented) -> str:
    """Return signature and full docstring."""
    return f"{entry.signature or entry.name}\n{entry.docstring}"


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
            yield Documented(name, signature, text)


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
