"""Test command lines that the real definitions accept and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from serve_eval.launchers._standin.arguments import group
from serve_eval.launchers._standin.options import Flavour

OWN: list[dict[str, Any]] = [
    {"argv": ["M", "--tp_size", "2"], "flavour": "v12", "rc": 0, "subcommand": "serve"},
    {
        "argv": ["--host", "h", "M"],
        "flavour": "v12",
        "rc": 2,
        "error": "Error: No such option '--host'.",
    },
    {"argv": ["M", "--server-role", "context"], "flavour": "main", "rc": 2},
    {
        "argv": ["disagg", "-c", "x"],
        "flavour": "v12",
        "rc": 2,
        "error": "Error: No such option '-c'.",
    },
    {"argv": ["disaggregated", "--config", "x"], "flavour": "v12", "rc": 2},
    {
        "argv": ["disaggregated", "--config", "x"],
        "flavour": "main",
        "rc": 0,
        "subcommand": "disaggregated",
    },
    {"argv": ["M", "--log_level", "INFO"], "flavour": "main", "rc": 2},
    {"argv": ["serve"], "flavour": "main", "rc": 2, "error": "Error: Missing argument 'MODEL'."},
    {"argv": [], "flavour": "v12", "rc": 2},
    {"argv": ["serve", "--help"], "flavour": "v12", "rc": 0},
]


def check(row: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    flavour: Flavour = row["flavour"]
    seen: list[tuple[str, dict[str, Any]]] = []
    command = group(flavour, lambda name, params, given: seen.append((name, params)))
    try:
        rc = command.main(row["argv"], prog_name="trtllm-serve", standalone_mode=True)
    except SystemExit as end:
        rc = end.code
    out, err = capsys.readouterr()
    assert (rc or 0) == row["rc"], err
    if row["rc"] == 0 and "subcommand" in row:
        [(name, params)] = seen
        assert name == row["subcommand"]
        assert params == row.get("params", params)
    elif not row["argv"]:
        assert "Usage: trtllm-serve" in err
    elif row["rc"]:
        last = err.strip().splitlines()[-1].strip()
        assert last.startswith("Error: ")
        assert last.partition(" (")[0] == row.get("error", last).partition(" (")[0]
    else:
        assert "--help" in out
        assert out.strip() == row.get("stdout", out.strip())


@pytest.mark.parametrize("row", OWN, ids=lambda row: " ".join([row["flavour"], *row["argv"]]))
def test_command_lines_of_ours(row: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    check(row, capsys)


def test_every_command_line_of_the_conformance_file(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads((shared / "vectors/trtllm_serve_conformance.json").read_text())["argv"]
    failed = []
    for number, row in enumerate(rows):
        try:
            check(row, capsys)
        except AssertionError as error:
            failed.append((number, row["argv"], str(error)[:600]))
    assert not failed, f"{len(failed)} of {len(rows)}: {failed}"


def test_the_help_names_every_option() -> None:
    for flavour in ("v12", "main"):
        command = group(flavour, lambda *_: None).commands["serve"]  # type: ignore[arg-type]
        text = command.get_help(click.Context(command))
        assert all(
            flag in text
            for flag in ("--tp_size", "--config", "--server_role", "--disagg_cluster_uri")
        )
        assert ("--report_addr" in text) == (flavour == "main")
