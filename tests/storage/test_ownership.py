"""Test the key of a user and its signatures."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serve_eval.storage.ownership import add_signature, has_key, is_own

CONTENT = {"plan": {"a": 0.1, "b": [1, None]}, "schema_version": 1}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def test_what_this_user_signed_for_a_folder_is_his_own_there(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    saved = add_signature(CONTENT, tmp_path, environ)
    key = tmp_path / "state/serve-eval/key"
    assert (stat.S_IMODE(key.stat().st_mode), len(key.read_bytes())) == (0o600, 32)
    assert is_own(saved, tmp_path, environ)
    assert is_own(dict(reversed(saved.items())), tmp_path, environ), (
        "the order of keys is not content"
    )
    (link := tmp_path / "link").symlink_to(tmp_path)
    assert is_own(saved, link, environ)
    assert not is_own(saved, tmp_path / "other", environ)
    assert not is_own({**saved, "schema_version": 2}, tmp_path, environ)
    assert not is_own({**saved, "more": 1}, tmp_path, environ)
    assert not is_own(CONTENT, tmp_path, environ)
    assert not is_own({**saved, "signature": 5}, tmp_path, environ)
    assert not is_own({**saved, "signature": "\u00e9"}, tmp_path, environ)
    assert not is_own(saved, tmp_path, {"XDG_STATE_HOME": str(tmp_path / "another")})


@pytest.mark.parametrize("name", ["XDG_STATE_HOME", "HOME"])
def test_no_key_counts_that_lies_where_the_command_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An unpacked folder could contain a key and plans signed with it."""
    monkeypatch.chdir(tmp_path)
    unpacked = tmp_path / ("state" if name == "XDG_STATE_HOME" else ".local/state")
    saved = add_signature(CONTENT, tmp_path, {"XDG_STATE_HOME": str(unpacked)})
    monkeypatch.setenv("HOME", "." if name == "HOME" else str(tmp_path / "home"))
    relative = {"XDG_STATE_HOME": "state"} if name == "XDG_STATE_HOME" else {}
    assert not is_own(saved, tmp_path, relative)
    assert has_key(relative) is (name != "HOME")


def test_many_that_begin_at_once_have_one_key(tmp_path: Path, environ: dict[str, str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda _: add_signature(CONTENT, tmp_path, environ)["signature"], range(32))
        )
    assert len(set(found)) == 1
    assert [path.name for path in (tmp_path / "state/serve-eval").iterdir()] == ["key"]


@pytest.mark.parametrize("how", ["readable", "short", "link", "unwritable", "no home"])
def test_a_key_that_others_may_have_made_does_not_count(
    tmp_path: Path, environ: dict[str, str], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = add_signature(CONTENT, tmp_path, environ)
    key = tmp_path / "state/serve-eval/key"
    if how == "readable":
        key.chmod(0o640)
    elif how == "short":
        key.write_bytes(b"k")
    elif how == "link":
        key.symlink_to(key.rename(tmp_path / "elsewhere"))
    elif how == "unwritable":
        environ["XDG_STATE_HOME"] = "/proc/nowhere"
    else:
        environ.clear()
        monkeypatch.setenv("HOME", "/proc/nowhere")
    assert not is_own(saved, tmp_path, environ)
    assert not has_key(environ)
    assert "signature" not in add_signature(CONTENT, tmp_path, environ)
