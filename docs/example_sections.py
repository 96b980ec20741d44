"""For the reference pages: Google's style says `Examples:` where the docstrings here say `Example:`."""

import re
from typing import Any

from griffe import Extension, Object


class ExampleSections(Extension):
    """Shows the examples of docstrings as code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rename the section."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
