"""The page at `/`: one static file, and the headers that limit what a browser lets it do."""

import base64
import hashlib
import re
from functools import cache
from importlib import resources


@cache
def page() -> tuple[bytes, dict[str, str]]:
    """Return the page and its response headers.

    The Content-Security-Policy allows the page's own script and style, by their hashes, and requests to the server that
    it came from; no other script, no other host, no form submission, no frame around it, and no text read as HTML.
    """
    body = resources.files(__name__).joinpath("index.html").read_bytes()
    policy = (
        "default-src 'none'",
        f"script-src {_source(body, 'script')}",
        f"style-src {_source(body, 'style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return body, {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(policy),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _source(body: bytes, tag: str) -> str:
    """Return the hash of the only inline script or style, as CSP names it."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), body, flags=re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
