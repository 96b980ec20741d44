"""Modules for frameworks that are not installed have no doctests to run."""

from importlib.util import find_spec

FRAMEWORKS = {"flwr": "flower.py", "nvflare": "nvflare.py"}
collect_ignore = [f"seepage/frameworks/{file}" for package, file in FRAMEWORKS.items() if find_spec(package) is None]
