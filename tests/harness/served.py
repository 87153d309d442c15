"""A simulated endpoint next to the test, for what runs an event loop of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from launchers._simulated.simulator import STATS, SimulatorConfig, Stats, create_app
from tests.scripted_server import serve_in_thread


@contextmanager
def served(**config: Any) -> Iterator[tuple[str, Stats]]:
    """Its base URL and what it has seen. It ends with the block."""
    app = create_app(SimulatorConfig(record=True, **config))
    with serve_in_thread(app) as url:
        yield url, app[STATS]
