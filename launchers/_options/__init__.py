"""Options that several launchers share, with their help."""

from __future__ import annotations

from serve_eval.launchers._options.options import (
    LOOPBACK,
    EngineOptions,
    Env,
    FrontDoor,
    GpuChoice,
    ReadyTimeout,
    TimeLimits,
    Variables,
    WorkerOptions,
)

__all__ = [
    "LOOPBACK",
    "EngineOptions",
    "Env",
    "FrontDoor",
    "GpuChoice",
    "ReadyTimeout",
    "TimeLimits",
    "Variables",
    "WorkerOptions",
]
