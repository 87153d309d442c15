"""Test the process that draws: its early start, its end, and what it may lose."""

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from serve_eval.report.drawing_process import drawing_ahead
from serve_eval.report.pictures import Picture, draw_boxes
from serve_eval.report.pictures.picture import draw_all, name_extra
from tests.cli.command import environment, serve_eval
from tests.clock import until
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer

GOOD = draw_boxes("lengths", {"a": [1.0, 2.0, 3.0]}, "tokens")
assert GOOD is not None
BAD = replace(GOOD, spec={"mark": {"type": "no such mark"}})
OWN = Picture(title="own", description="own", svg="<svg></svg>")
WITHOUT = "import sys; sys.modules['vl_convert'] = None; from serve_eval.cli import main; main()"


def _draw(*pictures):
    said = []
    return draw_all(pictures, said.append), said


def test_a_specification_that_cannot_be_drawn_leaves_the_others():
    drawn, said = _draw(GOOD, BAD, OWN, replace(GOOD, title="another"))
    assert [one.svg is not None for one in drawn] == [True, False, True, True]
    assert drawn[2] is OWN
    assert said == ["warning: 1 of 3 pictures were not drawn, the page shows rulers instead"]


def test_pictures_need_no_process_if_none_is_drawn(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert _draw() == ([], [])
    assert _draw(OWN) == ([OWN], [])
    monkeypatch.setenv("SERVE_EVAL_NO_PICTURES", "1")
    assert _draw(GOOD) == ([GOOD], [])
    monkeypatch.setenv("SERVE_EVAL_NO_PICTURES", "")
    drawn, [warning] = _draw(GOOD, OWN)
    assert drawn == [GOOD, OWN]
    assert "could not be started: FileNotFoundError" in warning


@pytest.mark.parametrize(
    ("library", "kept", "why"),
    [
        ("def vegalite_to_svg(spec, **more): os._exit(3)", 0, "it ended with the status 3"),
        ("import this_is_missing", 0, "it ended with the status 1"),
        (
            "left = [1]\n"
            "def vegalite_to_svg(spec, **more):\n"
            "    left.pop() if left else os.abort()\n"
            '    return \'<svg width="1" height="1" viewBox="0 0 1 1"></svg>\'',
            1,
            "it was ended by SIGABRT",
        ),
        ("def vegalite_to_svg(spec, **more): return 'no picture'", 0, ""),
        ("print('{')\ndef vegalite_to_svg(spec, **more): return '<svg></svg>'", 0, ""),
    ],
)
def test_a_library_that_ends_its_process_keeps_what_was_drawn(
    library, kept, why, tmp_path, monkeypatch
):
    (tmp_path / "vl_convert.py").write_text(f"import os\n{library}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    drawn, [warning] = _draw(GOOD, GOOD, GOOD)
    assert [one.svg is not None for one in drawn] == [i < kept for i in range(3)]
    said = f"warning: {3 - kept} of 3 pictures were not drawn, the page shows rulers instead"
    assert warning == said + (f": the process that draws ended early, {why}" if why else "")


def test_a_limit_of_addresses_is_named(tmp_path):
    code = (
        "import resource; from tests.report.pictures.test_drawing import GOOD, draw_all\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({8 * 2**30}, resource.RLIM_INFINITY))\n"
        "assert draw_all([GOOD], print) == [GOOD]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (
        "ended by SIGTRAP. It reserves 65 GiB of addresses, and ulimit -v allows 8" in done.stdout
    )
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_without_the_extra_the_page_has_the_rulers_of_the_terminal(tmp_path):
    out = tmp_path / "out"
    flags = ["--launcher", "simulated", "-m", "embedded", "--tasks", "word_problems"]
    more = ["--limit", "30", "--no-reference", "-o", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "run", *flags, *more],
        env=environment(SERVE_EVAL_NO_PICTURES=""),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count("warning: ")) == (3, 0), done.stderr
    page = (out / "report.html").read_text()
    [low, high] = re.search(r"\n +(\d+) [┴─]\S+ (\d+)\n", done.stdout).groups()
    verdict = page[page.index('<section class="verdict') : page.index("</section>")]
    assert re.findall(r'"ruler-end">(\d+)<', verdict) == [low, high]
    value = re.search(r"● ([\d.]+)", done.stdout)
    assert f"● value {value[1]} (" in verdict
    assert page.count("The extra page draws more pictures: pip install") == 1
    assert "<rect" not in page
    assert read_json(out / "report.json")["tasks"][0]["result"]["scored"] == 30


def test_with_the_extra_the_page_does_not_name_it(tmp_path):
    flags = "--launcher simulated -m embedded --tasks word_problems"
    more = f"--limit 30 --no-reference -o {tmp_path}/out"
    serve_eval(f"run {flags} {more}", SERVE_EVAL_NO_PICTURES="")
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<desc") == 3
    assert "The extra page" not in page


def test_the_extra_is_named_by_what_a_package_index_has():
    assert re.fullmatch(
        r"The extra page draws more pictures: pip install 'vl-convert-python>=[\d.]+'", name_extra()
    )
    assert os.sep not in name_extra()


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
def begun(tmp_path):
    """Yield a folder with a file for each process that loaded a library that only counts."""
    folder, code = tmp_path / "begun", tmp_path / "code"
    folder.mkdir()
    code.mkdir()
    (code / "vl_convert.py").write_text(LIBRARY.format(folder=str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(code))
        patch.delenv("SERVE_EVAL_NO_PICTURES", raising=False)
        yield folder


def _width(said):
    [drawn] = draw_all([GOOD], said.append)
    return drawn.svg.partition(' width="')[2].partition('"')[0]


def _pids(folder):
    return [int(file.name) for file in folder.iterdir()]


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return status.stdout.strip()[:1] not in ("", "Z")


async def _wait_for(folder):
    await until(lambda: bool(_pids(folder)))
    return _pids(folder)[0]


def test_the_first_page_takes_the_process_and_the_second_has_its_own(begun):
    said = []
    with drawing_ahead() as ahead:
        ahead.start()
        ahead.start()
        assert _width(said) == "2", "the first picture of the library was drawn ahead"
        assert _width(said) == "1"
    assert (len(_pids(begun)), said) == (2, [])


def test_without_a_start_a_page_has_its_own(begun):
    said = []
    with drawing_ahead():
        assert _width(said) == "1"
    assert said == []


def test_a_process_that_no_page_takes_ends_with_the_block(begun):
    with drawing_ahead() as ahead:
        ahead.start()
        pid = asyncio.run(_wait_for(begun))
        assert _lives(pid)
    assert not _lives(pid)
    assert _width([]) == "1"


def test_a_process_lost_before_its_page_costs_one_warning(begun):
    said = []
    with drawing_ahead() as ahead:
        ahead.start()
        os.kill(asyncio.run(_wait_for(begun)), signal.SIGTRAP)
        assert draw_all([GOOD], said.append) == [GOOD]
    [warning] = said
    assert warning.startswith("warning: 1 of 1 pictures were not drawn, the page shows rulers")
    assert "it was ended by SIGTRAP" in warning


def test_unwanted_pictures_start_nothing(begun, monkeypatch):
    monkeypatch.setenv("SERVE_EVAL_NO_PICTURES", "1")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with drawing_ahead() as ahead:
        ahead.start()
        assert draw_all([GOOD], pytest.fail) == [GOOD]


class Held:
    """A server that holds late replies until the process that draws is there.

    With `forever`, they never come. `early` has the processes that were there at the 20th request.
    """

    def __init__(self, begun, *, forever):
        self._begun, self._forever, self._asked = begun, forever, 0
        self.early = []
        self.pid = asyncio.get_running_loop().create_future()

    async def reply(self, request):
        self._asked += 1
        if self._asked == 20:
            self.early = _pids(self._begun)
        if self._asked > 35 and not self.pid.done():
            self.pid.set_result(await _wait_for(self._begun))
        if self._asked > 35 and self._forever:
            await asyncio.Event().wait()
        said = answer("#### 42", usage=(9, min(request.max_tokens, 9)))
        return await said(request)


async def _start(url, data_root, out):
    given = ["run", "--base-url", url, "--model", "m", "--tasks", "gsm8k", "--limit", "40"]
    given += ["--concurrency", "1", "--no-reference", f"--dataset-root={data_root}", "-o", str(out)]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "serve_eval", *given),
        env=environment(SERVE_EVAL_NO_PICTURES=""),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def test_a_run_starts_it_while_answers_come(begun, data_root, tmp_path):
    async def go():
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
def test_a_run_that_is_ended_leaves_no_process(number, begun, data_root, tmp_path):
    async def go():
        held = Held(begun, forever=True)
        async with ScriptedServer(held.reply).serve() as url:
            process = await _start(url, data_root, tmp_path / "run")
            pid = await held.pid
            process.send_signal(number)
            await process.communicate()
            await until(lambda: not _lives(pid))

    asyncio.run(go())
