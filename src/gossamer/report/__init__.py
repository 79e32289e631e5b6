"""A self-contained HTML page about runs, made from their folders: `gossamer report RUN...`."""

from gossamer.report.page import Report, report
from gossamer.report.reading import NoRun, Run, read_run

__all__ = ["NoRun", "Report", "Run", "read_run", "report"]
