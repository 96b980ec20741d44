"""Seepage measures what federated learning gives away.

The names of an audit, in its order; `help(seepage.play)` and the like say more, and `seepage --help` what the command
does. Files of results are tables: `seepage.audit.summary` has `read_rows` and `means`.

    data        load_data, Examples, DataSpec (shape, range and classes of one example)
    network     Task (your nn.Module, checked layer by layer), build_model
    federation  Recipe (how a client trains) with SGD or Adam, Federation, play, local_update
    messages    record (around your own loop), read_capture, read_pair, read_gradient, write_capture, examine,
                Capture, Exchange, Secret (a client's data, for scoring alone), CaptureError
    attacker    THREATS, ThreatModel, Fact, Setting, observe, View, NotKnown
    attack      ATTACKS, Attack, InvertingGradients, Finding, minimise, Stream (of random numbers)
    defence     DEFENCES, Defence, NoDefence, Clip, GaussianNoise, TopK, chain
    verdict     score

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

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        """The names of `seepage.api`, when the first of them is asked for: PyTorch takes seconds to come."""
        if name == "__version__":
            return importlib.import_module("seepage.home").version()
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
        names = {*globals(), "__version__", *importlib.import_module("seepage.api").__all__}
        return sorted(names - {"Any", "TYPE_CHECKING", "importlib"})
