"""Each wrong command of a first day ends with the cause and the fix, in 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from tests.cli.command import serve_eval
from tests.cli.wrong_commands import TABLE, WrongCommand, prepare
from tests.scripted_server import EVERY_PATH, ScriptedServer, answer, fail, models, raw

PAGE = raw(b"<html>It works!</html>", content_type="text/html")
INTERNAL = re.compile(
    r"Traceback|\bserve_eval\.|msgspec|pydantic|\b_ssl|Errno|<class|\bNone\b|object at 0x"
)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Yield the addresses of servers, in a folder with the files and runs of the table."""
    place = tmp_path_factory.mktemp("place")
    prepare(place)
    servers = {
        "ok": ScriptedServer([answer("#### 1")], routes={"/v1/models": lambda _: models("m")}),
        "picky": ScriptedServer(
            [fail(404, "The model does not exist")], routes={"/v1/models": lambda _: models("m-7b")}
        ),
        "page": ScriptedServer(
            [raw(b"<html>It works!</html>", content_type="text/html")], paths=EVERY_PATH
        ),
        "loading": ScriptedServer([fail(503, "Model is loading")], paths=EVERY_PATH),
        "locked": ScriptedServer([fail(401, "Incorrect API key")], paths=EVERY_PATH),
        "moved": ScriptedServer([raw(status=302, headers={"Location": "/v2"})], paths=EVERY_PATH),
    }
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        found = {
            name: stack.enter_context(server.serve_in_thread()).removeprefix("http://")
            for name, server in servers.items()
        }
        found["host"] = found["ok"].removesuffix("/v1")
        for task, out in (("word_problems", "done"), ("passkey_short", "keys")):
            words = f"run --base-url {found['ok']} -m m --tasks {task} --no-reference"
            made = serve_eval(*words.split(), "--set", f"{task}.num_samples=2", "-o", out)
            assert made.returncode == 3, made.stderr
        yield found


def test_the_table_has_64_commands() -> None:
    assert len(TABLE) == 64


@pytest.mark.parametrize("wrong", TABLE.values(), ids=TABLE.keys())
def test_the_message_names_the_cause_and_the_fix(
    addresses: Mapping[str, str], wrong: WrongCommand
) -> None:
    words = wrong.words.format(**addresses).split()
    done = serve_eval(*words, terminal=True, COLUMNS="80", **wrong.environ)
    assert done.returncode == wrong.code, done.stderr
    told = " ".join(done.stderr.split())
    assert wrong.cause.format(**addresses) in told
    assert wrong.fix.format(**addresses) in told
    assert INTERNAL.search(done.stderr) is None
    lines = [line for line in map(str.strip, done.stderr.splitlines()) if len(line) > 80]
    assert [one for one in lines if " " in one and not one.startswith("serve-eval ")] == []
