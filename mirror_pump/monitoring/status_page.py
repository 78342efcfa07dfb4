"""The status page: one HTML document with its style and its program in it, and a policy that allows nothing else."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources

from starlette.responses import Response

_DIRECTORY = importlib.resources.files("mirror_pump.monitoring") / "page"


class StatusPage:
    """The page, put together once. It holds no value of the mirror: its program fetches them."""

    def __init__(self) -> None:
        style, script = (_text(name) for name in ("status.css", "status.js"))
        self._html = _text("status.html").replace("/*style*/", style).replace("/*script*/", script)
        self._policy = "; ".join(
            (
                "default-src 'none'",
                f"style-src {_source(style)}",
                f"script-src {_source(script)}",
                "connect-src 'self'",
                "img-src data:",
                "frame-ancestors 'none'",
                "base-uri 'none'",
                "form-action 'none'",
                "require-trusted-types-for 'script'",
                "trusted-types 'none'",
            )
        )

    def response(self) -> Response:
        """The page with its policy."""
        return Response(self._html, media_type="text/html", headers={"Content-Security-Policy": self._policy})


def _text(name: str) -> str:
    return (_DIRECTORY / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """The policy's name for an inline element with exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
