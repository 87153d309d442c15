"""List the tests that concern each part of the core.

Each mutant gets those of them that run its line.
"""

from __future__ import annotations

CONCERNING = {
    "stats": (
        "tests/stats",
        "tests/verdicts",
        "tests/evaluation/results/test_degradation_alarm.py",
        "tests/evaluation/results/test_degradation.py",
        "tests/evaluation/test_early_stop.py",
        "tests/verdicts/test_early_paired.py",
        "tests/evidence/agreement/test_self_flips.py",
        "tests/evidence/attribution/test_latency.py",
        "tests/workflows/watch/test_judging.py",
        "tests/workflows/watch/test_alarming.py",
        "tests/cli/test_power.py",
    ),
    "client": (
        "tests/client",
        "tests/evaluation/engine/test_send.py",
        "tests/evaluation/endpoint/test_hang_detector.py",
        "tests/evaluation/test_images.py",
        "tests/evaluation/test_capabilities.py",
        "tests/evaluation/endpoint/test_server_quirks.py",
        "tests/evaluation/engine/test_runner.py",
    ),
    "runner": (
        "tests/client/test_steps.py",
        "tests/evaluation/engine/test_lane.py",
        "tests/evaluation/engine/test_session.py",
        "tests/evaluation/engine/test_starvation.py",
        "tests/evaluation/engine/test_work_per_sample.py",
        "tests/evaluation/engine/test_runner.py",
        "tests/evaluation/test_early_stop.py",
        "tests/evaluation/results/test_degradation_alarm.py",
        "tests/client/test_traffic.py",
    ),
    "storage": (
        "tests/client/test_steps.py",
        "tests/storage/test_journal.py",
        "tests/storage/test_durability.py",
        "tests/evaluation/engine/test_runner.py",
        "tests/storage/records/test_executions.py",
        "tests/storage/records/test_reply_proofs.py",
    ),
    "trust": (
        "tests/evaluation/test_trust.py",
        "tests/evaluation/test_reach.py",
        "tests/storage/test_ownership.py",
        "tests/cli/test_trust.py",
    ),
    "early stop": ("tests/evaluation/test_early_stop.py", "tests/verdicts/test_early_paired.py"),
    "step proofs": (
        "tests/client/test_step_ledger.py",
        "tests/client/test_http1_connection.py",
        "tests/client/test_steps.py",
        "tests/client/test_step_ends.py",
        "tests/client/test_connections.py",
        "tests/evaluation/engine/test_runner.py",
    ),
    "suite": ("tests/workflows/suite", "tests/cli/test_suite.py"),
    "watch": ("tests/workflows/watch", "tests/stats/test_calibrate_watch.py"),
    "verdicts": (
        "tests/verdicts",
        "tests/workflows/suite/test_judgement.py",
        "tests/tasks/test_aggregations.py",
        "tests/verdicts/test_subset_reference.py",
    ),
    "reference": (
        "tests/verdicts/test_references.py",
        "tests/verdicts/test_reference_answers.py",
        "tests/workflows/references/test_import_trtllm.py",
        "tests/verdicts/test_reference_samples.py",
        "tests/workflows/references/test_register.py",
        "tests/workflows/references/test_yaml_edit.py",
        "tests/verdicts/test_below_reference.py",
        "tests/verdicts/test_subset_reference.py",
        "tests/cli/test_references.py",
        "tests/cli/test_references_register.py",
        "tests/cases/test_old_results.py",
    ),
    "launchers/_process": (
        "tests/launchers/test_process.py",
        "tests/launchers/test_fleet.py",
        "tests/launchers/test_endings.py",
        "tests/launchers/test_simulated.py",
        "tests/launchers/test_failures.py",
    ),
}
"""Files and folders by part of the core, without slow tests."""
