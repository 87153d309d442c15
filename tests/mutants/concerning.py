"""Which tests concern which part of the core. Of these each mutant is given those that run its line."""

from __future__ import annotations

CONCERNING = {
    "stats": (
        "tests/stats",
        "tests/verdicts",
        "tests/test_alarm.py",
        "tests/test_degradation.py",
        "tests/test_early.py",
        "tests/test_early_paired.py",
        "tests/test_self_flips.py",
        "tests/test_slow_workers.py",
        "tests/canary/test_judging.py",
        "tests/canary/test_alarming.py",
        "tests/cli/test_power.py",
    ),
    "client": (
        "tests/client",
        "tests/test_choices.py",
        "tests/test_hung.py",
        "tests/test_images.py",
        "tests/test_probe.py",
        "tests/test_quirks.py",
        "tests/test_runner.py",
    ),
    "runner": (
        "tests/client/test_steps.py",
        "tests/test_session.py",
        "tests/test_runner.py",
        "tests/test_early.py",
        "tests/test_alarm.py",
        "tests/test_proofs.py",
        "tests/test_traffic.py",
    ),
    "journal": (
        "tests/client/test_steps.py",
        "tests/test_journal.py",
        "tests/test_durability.py",
        "tests/test_proofs.py",
        "tests/test_runner.py",
        "tests/test_executions.py",
    ),
    "verdicts": (
        "tests/verdicts",
        "tests/suite/test_judgement.py",
        "tests/test_aggregations.py",
        "tests/test_subset_reference.py",
    ),
    "reference": (
        "tests/test_reference.py",
        "tests/test_reference_import.py",
        "tests/test_reference_samples.py",
        "tests/test_registration.py",
        "tests/test_yaml_edit.py",
        "tests/test_against_reference.py",
        "tests/test_subset_reference.py",
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
"""Files and folders. Slow tests are left out."""
