"""Test which version of TensorRT-LLM is found, and the table of versions."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.launchers._trtllm import version
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.version import adapt_to_machine
from tests.launchers.flavours import BEGIN, END, PAGE, table

SCRIPT = """#!/bin/sh
echo "$1" >> {folder}/asked
cat {folder}/flags
"""
DAY = 24 * 3600


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/serve-eval/flags"


@pytest.fixture
def executable(tmp_path: Path, cache: Path) -> Path:
    """Write a trtllm-serve that knows the options in the file `flags`.

    It records its calls in `asked`.
    """
    path = tmp_path / "trtllm-serve"
    path.write_text(SCRIPT.format(folder=tmp_path))
    path.chmod(0o755)
    (tmp_path / "flags").write_text("--port --config\n")
    return path


def server(*words: str, options: tuple[str, ...] = ("M", "--port", "1"), **more: Any) -> Server:
    return Server(
        name="s", argv=(*words, *options), probe=words, place=Place(host="h", port=1), **more
    )


def adapt(*servers: Server) -> list[tuple[str, ...]]:
    return [one.argv for one in asyncio.run(adapt_to_machine(servers))]


def asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().split()


def test_of_a_server_elsewhere_nothing_is_remembered(
    tmp_path: Path, executable: Path, cache: Path
) -> None:
    there = server(str(executable), "serve", here=False)
    for _ in range(2):
        assert adapt(there) == [there.argv]
    assert asked(tmp_path) == ["serve", "serve"]
    assert not cache.exists()


def test_what_help_told_is_remembered_until_the_executable_changes(
    tmp_path: Path, executable: Path
) -> None:
    one, other = server(str(executable), "serve"), server(str(executable), "disaggregated")
    for _ in range(2):
        assert adapt(one, one, other) == [one.argv, one.argv, other.argv]
    assert sorted(asked(tmp_path)) == ["disaggregated", "serve"]
    (tmp_path / "flags").write_text("--port --telemetry / --no-telemetry\n")
    assert adapt(one) == [one.argv]
    os.utime(executable, (1, 1))
    assert adapt(one) == [(*one.argv, "--no-telemetry")]
    executable.write_text(executable.read_text() + "\n")
    os.utime(executable, (1, 1))
    adapt(one)
    assert asked(tmp_path).count("serve") == 3


def test_a_refusal_rests_on_what_help_tells_now(tmp_path: Path, executable: Path) -> None:
    new = server(str(executable), "serve", options=("M", "--kv_cache_dtype=fp8"))
    with pytest.raises(PlanError, match="of this version has no option --kv_cache_dtype"):
        adapt(new)
    (tmp_path / "flags").write_text("--port --kv_cache_dtype\n")
    assert adapt(new) == [new.argv]
    assert adapt(new) == [new.argv]
    assert asked(tmp_path) == ["serve", "serve"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        "asked",
        "key",
        "flags",
        "types",
    ],
)
def test_a_damaged_record_is_as_none(
    content: bytes | str, tmp_path: Path, executable: Path, cache: Path
) -> None:
    adapt(one := server(str(executable), "serve"))
    (file,) = cache.iterdir()
    if isinstance(content, str):
        record = json.loads(file.read_text())
        changes = {
            "asked": {"asked": "x"},
            "key": {"key": ["a"]},
            "flags": {"flags": []},
            "types": {"flags": [1]},
        }
        content = json.dumps(record | changes[content]).encode()
    file.write_bytes(content)
    assert adapt(one) == [one.argv]
    assert asked(tmp_path) == ["serve", "serve"]
    assert [path.name for path in cache.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("image", "age_s", "holds"),
    [
        (None, DAY - 60, True),
        (None, DAY + 60, False),
        (None, -60, False),
        ("image:1", DAY - 60, True),
        ("image:1", DAY + 60, False),
        (f"image@sha256:{'0' * 64}", 400 * DAY, True),
    ],
)
def test_how_long_it_holds(
    image: str | None, age_s: float, holds: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = version.cache_key(("sh", "serve"), os.environ, image)
    version.remember(key, frozenset({"--port"}))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + age_s)
    assert version.read_remembered(key) == (frozenset({"--port"}) if holds else None)
    assert version.read_remembered([*key, "more"]) is None


def test_without_a_folder_to_write_it_is_asked_every_time(
    tmp_path: Path, executable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    one = server(str(executable), "serve")
    assert adapt(one) == adapt(one) == [one.argv]
    assert asked(tmp_path) == ["serve", "serve"]


def test_without_a_variable_it_is_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        version.remember(["image", "i", value], frozenset({"--port"}))
        assert version.read_remembered(["image", "i", value]) == frozenset({"--port"})
    assert len(list((tmp_path / ".cache/serve-eval/flags").iterdir())) == 2


def test_all_are_asked_at_the_same_time(tmp_path: Path, executable: Path) -> None:
    """Each command ends only when it sees the other."""
    executable.write_text(
        f"#!/bin/sh\ncd {tmp_path} && touch $1.here\nfor i in $(seq 99); do [ -e serve.here ] && ["
        " -e disaggregated.here ] && echo --port && exit; sleep .1; done\nexit 1\n"
    )
    both = [server(str(executable), "serve"), server(str(executable), "disaggregated")]
    assert adapt(*both) == [one.argv for one in both]


@pytest.mark.slow
def test_the_page_tells_what_happens() -> None:
    text = PAGE.read_text()
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].splitlines()
    assert table() == written, "python -m tests.launchers.flavours write"
