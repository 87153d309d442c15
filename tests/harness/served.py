"""Serve a simulated endpoint next to the test, for code that runs its own event loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, Stats, create_app
from tests.scripted_server import serve_in_thread


@contextmanager
def served(**config: Any) -> Iterator[tuple[str, Stats]]:
    """Yield the base URL and the received requests; the endpoint ends with the block."""
    app = create_app(SimulatorConfig(record=True, **config))
    with serve_in_thread(app) as url:
        yield url, app[STATS]
