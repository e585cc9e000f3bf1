"""One page about runs: what was trained, how good it is, device by device, and what it cost."""

from __future__ import annotations

from trainer.report.page import write_report

__all__ = ["write_report"]
