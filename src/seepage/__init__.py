"""Seepage measures what federated learning gives away.

>>> import seepage
>>> task = seepage.Task(seepage.build_model("mlp", seepage.DataSpec((4,), classes=2), seepage.Stream.from_seed(0)),
...                     seepage.DataSpec((4,), classes=2))
>>> task.batched
True
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seepage.api import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """The names of `seepage.api`, when the first of them is asked for: PyTorch takes seconds to come."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module 'seepage' has no attribute {name!r}")
        api = importlib.import_module("seepage.api")
        # By now parts of the package are here as well: `seepage.attacks` needs no import of its own.
        if name in globals():
            return globals()[name]
        try:
            return getattr(api, name)
        except AttributeError:
            raise AttributeError(f"module 'seepage' has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return sorted({*globals(), *importlib.import_module("seepage.api").__all__})
