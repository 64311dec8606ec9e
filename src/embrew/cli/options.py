"""Commands from functions: arguments, options and their help come from signatures and docstrings.

Positional parameters of a command's function are arguments, keyword-only ones are options. Their help is in the `Args:`
section of its docstring; there, `name (DIR): text` shows the value as DIR. `options_of` adds options that the command
passes on to a public function, with that function's types, defaults and help. Its source is read for that, since
importing it may take seconds. A command that returns a document has --json, and prints the document if it is given.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from enum import StrEnum
from functools import wraps
from inspect import Parameter
from operator import mul, or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import typer
from typer.models import OptionInfo, ParameterInfo

from embrew.cli import console

Function = TypeVar("Function", bound=Callable[..., Any])

SOURCES = Path(__file__).parents[2]
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples):$", re.MULTILINE)
ENTRY = re.compile(r"^    \*{0,2}(\w+)(?: \((.+?)\))?: ", re.MULTILINE)
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", callback=console.show_json_only, help="Print one JSON document to stdout in place of tables."
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        callback=console.quiet,
        help="Show results, warnings and errors only: no progress, no log lines.",
    ),
]
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {ast.BitOr: or_, ast.Mult: mul, ast.Pow: pow}


class Entry(NamedTuple):
    """Description of a parameter in a docstring, and the name that stands for its value."""

    text: str
    metavar: str | None


def command(app: typer.Typer, name: str | None = None, *, quiet: bool = False) -> Callable[[Function], Function]:
    """Add a function to an app as a command, with the help of its docstring; `quiet`: with --quiet."""

    def register(function: Function) -> Function:
        text, entries = read_docstring(function.__doc__)
        signature = inspect.signature(function, eval_str=True)
        parameters = [
            parameter if parameter.annotation is typer.Context else _documented(parameter, entries.get(parameter.name))
            for parameter in signature.parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        shared = {"as_json": (AsJson, signature.return_annotation is not None), "quiet": (Quiet, quiet)}
        parameters += [
            Parameter(option, Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
            for option, (annotation, is_added) in shared.items()
            if is_added
        ]

        @wraps(function)
        def run(*arguments: Any, **values: Any) -> None:
            document = function(*arguments, **{key: value for key, value in values.items() if key not in shared})
            if document is not None:
                console.print_json(document)

        paragraphs = re.sub(r"(?<!\n)\n(?![\n -])", " ", text)  # Typer keeps the line breaks of a docstring
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(name, help=paragraphs)(run)
        return function

    return register


def options_of(
    function: str | Callable[..., Any], *names: str, **options: OptionInfo
) -> Callable[[Function], Function]:
    """Add keyword parameters of another function to a command as options; those that are given reach it as keywords.

    Args:
        function: a function, whose keyword-only parameters become options; or `module:function` or `module:dataclass`,
            which is not imported.
        names: parameters of the latter that become options.
        options: further ones, each with what a signature lacks: other names of the option, limits, completion.
    """

    def decorate(command: Function) -> Function:
        if isinstance(function, str):
            added = list(_read_options(function, {name: typer.Option() for name in names} | options))
        else:
            entries = read_docstring(function.__doc__)[1]
            keywords = [option for option in _parameters(function) if option.kind is Parameter.KEYWORD_ONLY]
            added = [_documented(option, entries.get(option.name)) for option in keywords]
        parameters = _parameters(command)
        first = [parameter for parameter in parameters if _is_first(parameter)]
        rest = [parameter for parameter in parameters if not _is_first(parameter)]
        optional = {option.name for option in added}

        @wraps(command)
        def call(*arguments: Any, **values: Any) -> Any:
            used = {name: value for name, value in values.items() if value is not None or name not in optional}
            return command(*arguments, **used)

        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*first, *added, *rest], return_annotation=inspect.signature(command, eval_str=True).return_annotation
        )
        return call  # type: ignore[return-value]

    return decorate


def read_docstring(docstring: str | None) -> tuple[str, dict[str, Entry]]:
    r"""Return the text above the first section, and the entries of `Args:` or `Attributes:` by name, without backticks.

    >>> read_docstring("Write.\n\nArgs:\n    to (DIR): folder to write.")
    ('Write.', {'to': Entry(text='Folder to write.', metavar='DIR')})
    """
    text, *sections = SECTION.split(inspect.cleandoc(docstring or ""))
    entries = {}
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        matches = list(ENTRY.finditer(section)) if title in ("Args", "Attributes") else []
        ends = [match.start() for match in matches[1:]] + [len(section)]
        for match, end in zip(matches, ends, strict=False):
            words = " ".join(section[match.end() : end].replace("`", "").split())
            entries[match[1]] = Entry(words[:1].upper() + words[1:], match[2])
    return text.strip(), entries


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _is_first(parameter: Parameter) -> bool:
    """Return whether a parameter is an argument, or an option that is required."""
    is_required = parameter.kind is Parameter.KEYWORD_ONLY and parameter.default is Parameter.empty
    return is_required or parameter.kind is Parameter.POSITIONAL_OR_KEYWORD


def _documented(parameter: Parameter, entry: Entry | None) -> Parameter:
    """Return a parameter as Typer reads it: an argument or option with its help."""
    annotation, info = parameter.annotation, None
    if get_origin(annotation) is Annotated:
        annotation, info = get_args(annotation)
    annotation = _option_type(annotation)
    is_option = parameter.kind is Parameter.KEYWORD_ONLY
    info = copy(info or (typer.Option() if is_option else typer.Argument()))
    if entry is not None:
        info.help, info.metavar = entry.text, entry.metavar or info.metavar
    if not is_option:
        info.metavar = info.metavar or parameter.name.upper()
    if annotation is bool and parameter.default is False and info.default is ... and not info.param_decls:
        info.param_decls = (f"--{parameter.name.replace('_', '-')}",)  # without --no-…
    default = None if isinstance(parameter.default, tuple) else parameter.default  # it may be repeated
    return parameter.replace(annotation=Annotated[annotation, info], default=default)


def _option_type(annotation: Any) -> Any:
    """Return the type of an option: of a union the first one, of a sequence a list."""
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        first = _option_type(arguments[0])
        return first | None if NoneType in arguments else first
    if get_origin(annotation) is not Sequence:
        return annotation
    element = _option_type(arguments[0])
    if get_origin(element) is Literal:  # which Typer does not take in a list
        element = StrEnum("Choice", {value: value for value in get_args(element)})  # type: ignore[misc, no-redef]
    return list[element]  # type: ignore[valid-type]


def _read_options(function: str, options: Mapping[str, ParameterInfo]) -> Iterator[Parameter]:
    """Read parameters of a function, or fields of a dataclass, in the source of its module."""
    module, _, name = function.partition(":")
    names = ModuleNames(module)
    block = re.search(rf"^(?:def|class) {name}\b.*?(?=^[^\s)]|\Z)", names.source, re.MULTILINE | re.DOTALL)
    node = ast.parse(block[0] if block else "").body[0]
    fields: dict[str, tuple[ast.expr, ast.expr | None]] = {}
    if isinstance(node, ast.FunctionDef):
        arguments, defaults = [*node.args.args, *node.args.kwonlyargs], [*node.args.defaults, *node.args.kw_defaults]
        required = len(arguments) - len(defaults)
        for argument, default in zip(arguments, [None] * required + defaults, strict=True):
            if argument.annotation is not None:
                fields[argument.arg] = argument.annotation, default
    elif isinstance(node, ast.ClassDef):
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                fields[field.target.id] = field.annotation, field.value
    entries = read_docstring(ast.get_docstring(node))[1]  # type: ignore[arg-type]
    for name, info in options.items():
        annotation, value = fields[name]
        parameter = Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if value is None else names.evaluate(value),
            annotation=Annotated[names.evaluate(annotation), info],
        )
        yield _documented(parameter, entries.get(name))


class ModuleNames(dict[str, Any]):
    """Names of a module that is not imported: constants of one line, which it defines or imports from embrew."""

    def __init__(self, module: str) -> None:
        types = {"str": str, "int": int, "float": float, "bool": bool, "Path": Path}
        super().__init__(types, Any=Any, Literal=Literal, Mapping=Mapping, Sequence=Sequence)
        path = SOURCES / module.replace(".", "/")
        self.source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")

    def __missing__(self, name: str) -> Any:
        if constant := re.search(rf"^{name} = (.+)$", self.source, re.MULTILINE):
            return self.evaluate(ast.parse(constant[1], mode="eval").body)
        if imported := re.search(rf"^ *from (embrew\S*) import .*\b{name}\b", self.source, re.MULTILINE):
            return ModuleNames(imported[1])[name]
        raise KeyError(name)

    def evaluate(self, expression: ast.expr) -> Any:
        """Return the value of an annotation or default."""
        match expression:
            case ast.Constant():
                return expression.value
            case ast.Name():
                return self[expression.id]
            case ast.Tuple():
                return tuple(map(self.evaluate, expression.elts))
            case ast.Subscript():
                return self.evaluate(expression.value)[self.evaluate(expression.slice)]
            case ast.BinOp():
                return OPERATORS[type(expression.op)](self.evaluate(expression.left), self.evaluate(expression.right))
        raise ValueError(f"{ast.unparse(expression)}: a type or default of another form cannot be read from source")
