"""A widget that leaves a picture behind, for pages without a kernel."""

from __future__ import annotations

from typing import Any

import anywidget


class Pictured(anywidget.AnyWidget):
    """Its kinds say in `fallback` what such a page shows: a script-free picture, a plain line."""

    def fallback(self) -> dict[str, str]:
        """By MIME type."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget; a picture of this moment for pages without a kernel; a plain line."""
        bundle = super()._repr_mimebundle_(**options)
        data = dict(bundle[0] if isinstance(bundle, tuple) else bundle or {})
        data |= self.fallback()
        return (data, bundle[1]) if isinstance(bundle, tuple) else data
