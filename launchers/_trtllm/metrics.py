"""Settings that make every version of a deployment report on its requests. Pure.

The 1.2 line reports at GET /perf_metrics. It takes unknown keys in the orchestrator's file for
arguments of workers that it does not start, and ignores unknown variables. Main has no such route:
its orchestrator writes files, and reports in responses. The reports that arrive show which of them
a version does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve_eval.schema import PerfMetricsFolders

WORKER = {"return_perf_metrics": True, "perf_metrics_max_requests": 10_000}
"""Makes a worker keep reports of its last requests until they are read. A worker of the 1.2 line
refuses keys that it does not know, so this has none that only main knows."""
TRACE_VARIABLE = "TRTLLM_REQUEST_TRACE_DIR"
"""For the orchestrator alone: its workers leave out what it sends them."""


def orchestrator_keys(log_dir: Path) -> dict[str, Any]:
    """Return the keys of the orchestrator's file."""
    return {**WORKER, "perf_metrics_output_dir": str(log_dir / "perf_metrics")}


def orchestrator_env(log_dir: Path) -> dict[str, str | None]:
    """Return the variables of the orchestrator."""
    return {TRACE_VARIABLE: str(log_dir / "request_traces")}


def locate_folders(file: Mapping[str, Any], env: Mapping[str, str | None]) -> PerfMetricsFolders:
    """Return where an orchestrator with this file and these variables writes."""
    return PerfMetricsFolders(
        output_dir=file.get("perf_metrics_output_dir"), trace_dir=env.get(TRACE_VARIABLE)
    )
