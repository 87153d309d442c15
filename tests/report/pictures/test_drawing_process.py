"""The process that draws may start before its page: one page takes it, and nothing outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from serve_eval.report.drawing_process import drawing_ahead
from serve_eval.report.pictures import draw_boxes
from serve_eval.report.pictures.drawing import draw_all
from tests.cli.command import environment
from tests.clock import until
from tests.scripted_server import HttpRequest, ScriptedServer, answer

GOOD = draw_boxes("lengths", {"a": [1.0, 2.0, 3.0]}, "tokens")
assert GOOD is not None
LIBRARY = """
import os, pathlib
pathlib.Path({folder!r}, str(os.getpid())).touch()
drawn = 0
def vegalite_to_svg(spec, **more):
    global drawn
    drawn += 1
    return f'<svg width="{{drawn}}" height="1" viewBox="0 0 1 1"></svg>'
"""


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with a file for each process that loaded a library that only counts."""
    folder, code = tmp_path / "begun", tmp_path / "code"
    folder.mkdir()
    code.mkdir()
    (code / "vl_convert.py").write_text(LIBRARY.format(folder=str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(code))
        patch.delenv("SERVE_EVAL_NO_PICTURES", raising=False)
        yield folder


def _width(said: list[str]) -> str:
    [drawn] = draw_all([GOOD], said.append)
    assert drawn.svg is not None
    return drawn.svg.partition(' width="')[2].partition('"')[0]


def _pids(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir()]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return status.stdout.strip()[:1] not in ("", "Z")


async def _wait_for(folder: Path) -> int:
    await until(lambda: bool(_pids(folder)))
    return _pids(folder)[0]


def test_the_first_page_takes_the_process_and_the_second_has_its_own(begun: Path) -> None:
    said: list[str] = []
    with drawing_ahead() as ahead:
        ahead.start()
        ahead.start()
        assert _width(said) == "2", "the first picture of the library was drawn ahead"
        assert _width(said) == "1"
    assert (len(_pids(begun)), said) == (2, [])


def test_without_a_start_a_page_has_its_own(begun: Path) -> None:
    said: list[str] = []
    with drawing_ahead():
        assert _width(said) == "1"
    assert said == []


def test_a_process_that_no_page_takes_ends_with_the_block(begun: Path) -> None:
    with drawing_ahead() as ahead:
        ahead.start()
        pid = asyncio.run(_wait_for(begun))
        assert _lives(pid)
    assert not _lives(pid)
    assert _width([]) == "1"


def test_a_process_lost_before_its_page_costs_one_warning(begun: Path) -> None:
    said: list[str] = []
    with drawing_ahead() as ahead:
        ahead.start()
        os.kill(asyncio.run(_wait_for(begun)), signal.SIGTRAP)
        assert draw_all([GOOD], said.append) == [GOOD]
    [warning] = said
    assert warning.startswith("warning: 1 of 1 pictures were not drawn, the page shows rulers")
    assert "it was ended by SIGTRAP" in warning


def test_unwanted_pictures_start_nothing(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVE_EVAL_NO_PICTURES", "1")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with drawing_ahead() as ahead:
        ahead.start()
        assert draw_all([GOOD], pytest.fail) == [GOOD]


class Held:
    """A server that holds late replies until the process that draws is there.

    With `forever`, they never come. `early` has the processes that were there at the 20th request.
    """

    def __init__(self, begun: Path, *, forever: bool) -> None:
        self._begun, self._forever, self._asked = begun, forever, 0
        self.early: list[int] = []
        self.pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def reply(self, request: HttpRequest) -> web.StreamResponse:
        self._asked += 1
        if self._asked == 20:
            self.early = _pids(self._begun)
        if self._asked > 35 and not self.pid.done():
            self.pid.set_result(await _wait_for(self._begun))
        if self._asked > 35 and self._forever:
            await asyncio.Event().wait()
        said = answer("#### 42", usage=(9, min(request.max_tokens, 9)))
        return await said(request)


async def _start(url: str, data_root: Path, out: Path) -> asyncio.subprocess.Process:
    given = ["run", "--base-url", url, "--model", "m", "--tasks", "gsm8k", "--limit", "40"]
    given += ["--concurrency", "1", "--no-reference", f"--dataset-root={data_root}", "-o", str(out)]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "serve_eval", *given),
        env=environment(SERVE_EVAL_NO_PICTURES=""),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def test_a_run_starts_it_while_answers_come(begun: Path, data_root: Path, tmp_path: Path) -> None:
    async def go() -> None:
        held = Held(begun, forever=False)
        async with ScriptedServer(held.reply).serve() as url:
            process = await _start(url, data_root, tmp_path / "run")
            _, err = await process.communicate()
        assert process.returncode == 3, err.decode()
        assert held.early == []
        assert _pids(begun) == [held.pid.result()]
        assert b"warning" not in err
        assert not _lives(held.pid.result())

    asyncio.run(go())
    page = (tmp_path / "run/report.html").read_text()
    assert '<svg xmlns="http://www.w3.org/2000/svg" width="2"' in page


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process(
    number: signal.Signals, begun: Path, data_root: Path, tmp_path: Path
) -> None:
    async def go() -> None:
        held = Held(begun, forever=True)
        async with ScriptedServer(held.reply).serve() as url:
            process = await _start(url, data_root, tmp_path / "run")
            pid = await held.pid
            process.send_signal(number)
            await process.communicate()
            await until(lambda: not _lives(pid))

    asyncio.run(go())
