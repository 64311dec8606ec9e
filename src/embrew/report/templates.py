"""The page's templates: their filters, the macro that embeds a chart, and files of the page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.evaluation.uncertainty import Difference

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

# Characters that could end a script element, or a line of JavaScript.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


MINUS = "\u2212"


@cache
def templates() -> jinja2.Environment:
    """Return the environment of the templates in `page/`; values are escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(file), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "interval": _interval,
        "json": as_json,
        "points": _points,
        "signed": _signed,
    }
    environment.globals["chart"] = environment.get_template("chart.html").make_module().chart  # type: ignore[attr-defined]
    return environment


def file(name: str) -> str | None:
    """Return a text file of `page/`; None if there is none of that name."""
    path = files("embrew.report").joinpath("page", *name.split("/"))
    return path.read_text(encoding="utf-8") if path.is_file() else None


def as_json(value: Any) -> Markup:
    """Return JSON for a script element; numbers that JSON cannot hold become null."""
    from markupsafe import Markup

    written = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(written.translate(_ESCAPES))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _points(score: float) -> str:
    return f"{100 * score:.2f}"


def _signed(score: float) -> str:
    return f"{100 * score:+.2f}".replace("-", MINUS)


def _interval(test: Difference) -> str:
    return f"[{_signed(test.low)}, {_signed(test.high)}]"
