"""JavaScript of the page: the libraries that draw charts, and the page's own files, each as an inline script."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache

from embrew.report.templates import file


def scripts(sections: Sequence[str]) -> list[str]:
    """Return the inline scripts of a page: Vega with Vega-Lite and Vega-Embed, `script.js`, those of the sections.

    The script of a section is `page/sections/NAME.js`, if there is such a file; its variables are its own.
    """
    own = [file(f"sections/{name}.js") for name in sections]
    return [
        _libraries(),
        file("script.js") or "",
        *(f'(() => {{\n"use strict";\n{text}}})();\n' for text in own if text),
    ]


def policy(inline: Sequence[str]) -> str:
    """Return the Content-Security-Policy under which only the given scripts run, and nothing is loaded.

    Vega's expressions are interpreted, so that `unsafe-eval` is not needed; Vega sets style attributes.
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in inline
    )
    allowed = {"default-src": "'none'", "script-src": hashes, "style-src": "'unsafe-inline'", "img-src": "data:"}
    return "; ".join(
        f"{kind} {sources}" for kind, sources in {**allowed, "base-uri": "'none'", "form-action": "'none'"}.items()
    )


@cache
def _libraries() -> str:
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its default is missing in the stub
    return bundle.replace("</script", "<\\/script")
