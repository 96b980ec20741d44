"""The names of `import seepage`."""

from seepage.attacks import ATTACKS, Attack, InvertingGradients
from seepage.capture import (
    Capture,
    CaptureError,
    Exchange,
    Secret,
    examine,
    read_capture,
    read_gradient,
    read_pair,
    write_capture,
)
from seepage.data import load as load_data
from seepage.defences import DEFENCES, Clip, Defence, GaussianNoise, NoDefence, TopK, chain
from seepage.engine.minimise import minimise
from seepage.finding import Finding
from seepage.frameworks.record import record
from seepage.local import local_update
from seepage.metrics.score import score
from seepage.models import build as build_model
from seepage.recipe import SGD, Adam, Recipe
from seepage.rounds import Federation, play
from seepage.spec import DataSpec, Examples
from seepage.streams import Stream
from seepage.task import Task
from seepage.threat import THREATS, Fact, NotKnown, Setting, ThreatModel, View, observe

__all__ = [
    "ATTACKS",
    "DEFENCES",
    "SGD",
    "THREATS",
    "Adam",
    "Attack",
    "Capture",
    "CaptureError",
    "Clip",
    "DataSpec",
    "Defence",
    "Examples",
    "Exchange",
    "Fact",
    "Federation",
    "Finding",
    "GaussianNoise",
    "InvertingGradients",
    "NoDefence",
    "NotKnown",
    "Recipe",
    "Secret",
    "Setting",
    "Stream",
    "Task",
    "ThreatModel",
    "TopK",
    "View",
    "build_model",
    "chain",
    "examine",
    "load_data",
    "local_update",
    "minimise",
    "observe",
    "play",
    "read_capture",
    "read_gradient",
    "read_pair",
    "record",
    "score",
    "write_capture",
]
