"""What users bring with them: functions and classes of their own, which a specification names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from seepage.audit.values import SpecError

__all__ = ["imported"]


def imported(name: str, where: str, what: str = "function") -> Any:
    """The user's own, named explicitly as `package.module:function`; the current folder is looked in first.

    Args:
        name: of the module and what stands in it.
        where: the place in the specification, for messages.
        what: is expected there.

    Raises:
        SpecError: when there is no such module, or nothing of that name in it.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        raise SpecError(f"{where}: expected `package.module:{what}`, got {name!r}, which names a module alone")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"{where}: expected `package.module:{what}`, got {name!r}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())
