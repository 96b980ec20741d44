"""The report: one self-contained HTML file for a privacy officer first and a researcher second."""

from seepage.report.headline import Headline, headline
from seepage.report.html import render, write_report

__all__ = ["Headline", "headline", "render", "write_report"]
