"""A self-contained HTML page about runs, made from their folders: `gossamer report RUN...`."""

from gossamer.report.page import Block, PaperTable, Report, report
from gossamer.report.reading import read_run
from gossamer.report.runs import NoRun, Run

__all__ = ["Block", "NoRun", "PaperTable", "Report", "Run", "read_run", "report"]
