"""The report: one self-contained HTML file for a privacy officer first and a researcher second."""

from seepage.report.headline import Headline, headline
from seepage.report.html import render

__all__ = ["Headline", "headline", "render"]
