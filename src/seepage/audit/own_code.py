"""What users bring with them: functions and classes of their own, which a specification names."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from torch import nn

from seepage.audit.values import SpecError
from seepage.spelling import meant
from seepage.task import ModuleError

__all__ = ["called", "imported"]


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
    start = f"{where}: expected `package.module:{what}`, got {name!r}"
    if not attribute:
        raise SpecError(f"{start}, which names a module alone")
    if module.endswith(".py") or "/" in module or os.sep in module:
        dotted = ".".join(part for part in Path(module.removesuffix(".py")).parts if part not in (".", "..", os.sep))
        raise SpecError(f"{start}, which names a file; write '{dotted}:{attribute}', as `import` would name it")
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise SpecError(f"{start}, which needs what is not installed: {error}") from error
        raise SpecError(
            f"{start}: {error} in {os.getcwd()} or among what is installed; "
            f"run from the folder where {error.name}.py lies, or name that folder in PYTHONPATH"
        ) from error
    except Exception as error:  # whatever the user's own file raises while it is imported
        raise SpecError(f"{start}: to import it raised {_raised(error)}") from error
    finally:
        sys.path.remove(os.getcwd())
    try:
        return getattr(found, attribute)
    except AttributeError as error:
        raise SpecError(f"{start}: {error}{meant(attribute, vars(found))}") from error


def called(make: Any, name: str, where: str, fix: str, *args: Any, **kwargs: Any) -> Any:
    """What the user's own function or class makes of some arguments.

    Args:
        make: from `imported`.
        name: as the specification has it.
        where: the place in the specification, for messages.
        fix: what to do where the arguments are not those that it takes.
        *args: to call it with.
        **kwargs: likewise.

    Raises:
        SpecError: naming the line of the user's file that raised something.
        ModuleError: as it is, where a module was found wanting.
    """
    if isinstance(make, nn.Module) or not callable(make):
        raise SpecError(
            f"{where}: expected {name} to be a function or a class that makes what is wanted, "
            f"got a {type(make).__name__} that is made already; name what makes it"
        )
    try:
        inspect.signature(make).bind(*args, **kwargs)
    except TypeError as error:
        raise SpecError(f"{where}: expected {name} to take what it is given, got: {error}; {fix}") from error
    except ValueError:
        pass  # built-in ones do not tell what they take
    try:
        return make(*args, **kwargs)
    except (ModuleError, SpecError):
        raise
    except Exception as error:
        raise SpecError(f"{where}: {name} raised {_raised(error, make)}") from error


def _raised(error: Exception, make: Any = None) -> str:
    """An exception with the line where it came up: the last one in the user's own file, if any is."""
    frames = traceback.extract_tb(error.__traceback__)
    module = inspect.getmodule(make)
    own = [frame for frame in frames if module is not None and frame.filename == getattr(module, "__file__", None)]
    last = (own or list(frames))[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
