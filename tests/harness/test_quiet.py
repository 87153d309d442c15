"""Test that lm-eval's logger gets its level back, even if callers overlap in threads."""

from __future__ import annotations

import logging
import threading
import warnings

from serve_eval.harness.library import quiet
from serve_eval.harness.measures import as_others_code

WAIT_S = 0.1


def test_threads_that_overlap_leave_the_logger_and_the_warnings_as_they_were() -> None:
    logger, filters = logging.getLogger("lm_eval"), list(warnings.filters)
    entered, left, level = threading.Event(), threading.Event(), logger.level

    def first() -> None:
        with as_others_code(), quiet():
            entered.set()
            left.wait(WAIT_S)  # the second one arrives meanwhile, if it can
        left.set()

    def second() -> None:
        entered.wait()
        with as_others_code():
            left.wait(2 * WAIT_S)

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert (logger.level, list(warnings.filters)) == (level, filters)
    finally:
        logger.setLevel(level)
        warnings.filters[:] = filters  # type: ignore[index]
