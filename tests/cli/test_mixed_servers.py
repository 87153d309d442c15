"""A side that stopped and was continued on another server: the mixed answers are the cause."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, fail, models

QUESTIONS, STOPS_AT = 120, 80
CASES = "double:\n  scorer: numeric\n  cases:\n" + "".join(
    f"    - {{case: q{i}, input: {{prompt: 'Double item {i}.'}}, expected: {2 * i}}}\n"
    for i in range(1, QUESTIONS + 1)
)


class ReplacedServer:
    """Answers most items wrong and then fails, until a sound server takes its place."""

    def __init__(self, *, sound: bool) -> None:
        self.sound = sound
        self._asked = count()

    def __call__(self, request: HttpRequest) -> Reply:
        text = json.dumps(request.body)
        if "Double item " not in text:
            return answer("1", usage=(5, 1))
        item = int(text.partition("Double item ")[2].partition(".")[0])
        if not self.sound and next(self._asked) >= STOPS_AT:
            return fail(500)
        right = self.sound or item % 3 == 0
        return answer(str(2 * item if right else 2 * item + 1), usage=(5, 1))


def test_the_mixed_answers_are_the_cause_and_not_the_lost_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)
    (tmp_path / "cases.yaml").write_text(CASES)
    one, other = ReplacedServer(sound=True), ReplacedServer(sound=False)
    routes = {"/v1/models": lambda request: models("m")}
    out = tmp_path / "c"
    with (
        ScriptedServer(one, routes=routes).serve_in_thread() as a,
        ScriptedServer(other, routes=routes).serve_in_thread() as b,
    ):
        asked = ("--cases", tmp_path / "cases.yaml", "--model", "m", "--concurrency", "4")
        command = ("compare", a, b, *asked, "-o", out)
        first = serve_eval(*command)
        assert first.returncode == 4, first.stdout + first.stderr
        other.sound = True
        done = serve_eval(*command, "-v")
    assert done.returncode == 1, done.stdout + done.stderr
    cause = "answers of two servers may be mixed: B was asked in 2 sessions"
    flat = " ".join(done.stdout.split())
    assert f"{cause} and disagrees with itself" in flat.partition("likely")[2]
    assert "lost an answer" not in flat.partition("likely")[2].partition("next")[0]
    assert cause in next(line for line in flat.split("unsteady: ")[1:])
    [told] = [
        line for line in (out / "junit.xml").read_text().splitlines() if 'name="likely"' in line
    ]
    assert cause in told
    diagnosis = serve_eval("diagnose", out).stdout
    assert f" likely   mixed_servers: {cause}" in diagnosis
