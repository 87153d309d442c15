"""`serve-eval smoke` night after night: what is known to fail, what is new, what was mended."""

import json
import re
from xml.etree import ElementTree

import pytest

from serve_eval.checks.kinds.quality import questions
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.workflows.smoke.server import Quirks, create


def _smoke(arguments="", *, quirks=(), **more):
    server = create(Quirks(names=frozenset(quirks), **more))
    with server.serve_in_thread() as url:
        return serve_eval(f"smoke {url} {arguments}")


@pytest.fixture
def known(tmp_path):
    """Return the file that the night wrote on which three checks failed and tools were missing."""
    file = tmp_path / "known.json"
    done = _smoke(f"--write-known {file}", quirks=("unhealthy", "one_index", "no_tools"))
    assert (done.returncode, str(file) in done.stderr) == (1, True)
    return file


def _rows(done):
    return {row["name"]: row["outcome"] for row in json.loads(done.stdout)["result"]["rows"]}


def test_what_is_known_to_fail_is_known_and_counted_apart(known, tmp_path):
    bad = ("unhealthy", "one_index", "no_tools")
    done = _smoke(f"--known {known} -o {tmp_path}/out", quirks=bad)
    assert done.returncode == 0, done.stdout
    assert " known    health, n, batch\n" in done.stdout
    assert " passed, 3 known, 1 unsupported as before\n" in done.stdout
    assert "curl" not in done.stdout
    suites = ElementTree.parse(tmp_path / "out/junit.xml").getroot()
    [main, expected] = suites
    assert (main.get("failures"), main.get("skipped")) == ("0", "1")
    assert (expected.get("name"), expected.get("tests")) == ("serve-eval smoke: known to fail", "3")
    assert expected[0][0].get("message", "").startswith("known to fail: HTTP 503")
    summary = (tmp_path / "out/summary.md").read_text()
    assert summary.startswith("PASS smoke test ")
    assert "**KNOWN** | health" in summary
    assert "3 known" in summary
    told = json.loads(_smoke(f"--known {known} --json", quirks=bad).stdout)["result"]
    assert told["counts"] == {"PASS": 35, "FAIL": 0, "KNOWN": 3, "UNSUPPORTED": 1}
    assert told["exit_code"] == 0
    assert (told["known"]["mended"], told["known"]["missing"]) == ([], [])


def test_what_is_new_is_red_next_to_what_is_known(known):
    done = _smoke(
        f"--known {known} --json", quirks=("unhealthy", "one_index", "no_tools", "no_done")
    )
    assert done.returncode == 1
    rows = _rows(done)
    assert rows["health"] == rows["n"] == "KNOWN"
    assert rows["stream_chat"] == "FAIL"


def test_another_failure_of_a_known_check_is_red(known):
    content = read_json(known)
    content["fails"]["health"] = "HTTP 500: gone"
    known.write_text(json.dumps(content))
    done = _smoke(f"--known {known}", quirks=("unhealthy", "one_index", "no_tools"))
    assert done.returncode == 1
    assert "another failure than the known one: HTTP 500: gone" in " ".join(done.stdout.split())


def test_what_is_no_longer_supported_is_red(known):
    bad = ("unhealthy", "one_index", "no_tools", "no_guided")
    done = _smoke(f"--known {known}", quirks=bad)
    assert done.returncode == 1
    assert "json_schema: no longer supported: ignored" in done.stdout
    assert "1 unsupported as before\n" in done.stdout
    assert " lacks    as before: tools\n" in done.stdout


def test_what_was_mended_is_said_with_what_to_do(known):
    done = _smoke(f"--known {known}", quirks=("one_index",))
    assert done.returncode == 0, done.stdout
    assert f" mended   health; write the file again with --write-known {known}" in done.stdout
    again = _smoke(f"--known {known} --write-known {known}", quirks=("one_index",))
    assert (again.returncode, " known    n, batch\n" in again.stdout) == (0, True)
    content = read_json(known)
    assert list(content["fails"]) == ["n", "batch"]
    assert "health" in content["passes"]


def test_the_file_names_the_model_and_the_kind_of_server(tmp_path):
    file = tmp_path / "known.json"
    _smoke(f"--write-known {file}", quirks=("unhealthy",), owner="vllm")
    content = read_json(file)
    assert (content["model"], content["server"]) == ("m", "vLLM")
    assert content["fails"] == {"health": "HTTP 503: an empty body"}
    for owner, said in (("llamacpp", "llama-server"), (None, "a server of unknown kind")):
        done = _smoke(f"--known {file}", quirks=("unhealthy",), owner=owner)
        assert done.returncode == 1
        told = " ".join(done.stdout.split())
        assert f"was written for model m on vLLM, and this is model m on {said}" in told
        assert "nothing in it counts" in told
    file.write_text(file.read_text().replace('"m"', '"other"'))
    done = _smoke(f"--known {file}", quirks=("unhealthy",), owner="vllm")
    assert (done.returncode, "was written for model other on vLLM" in done.stdout) == (1, True)


def test_checks_that_are_missing_or_have_another_name_are_said(known):
    content = read_json(known)
    content["fails"] = {"helth": "HTTP 503", "cancel": "slow", **content["fails"]}
    content["passes"].remove("seed")
    known.write_text(json.dumps(content))
    done = _smoke(f"-v --known {known}", quirks=("unhealthy", "one_index", "no_tools"))
    assert done.returncode == 0
    assert "not checked: helth" in done.stdout
    assert "there is no such check. Did you mean 'health'?" in done.stdout
    assert f"not checked: cancel, which {known} names\n" in done.stdout
    assert f"not in {known}: seed; " in done.stdout


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "there is no file"),
        (b"", "is damaged"),
        (b"{", "is damaged"),
        (b'\xff"', "is damaged"),
        (b"[1]", "is damaged"),
        (b'{"smoke_version": 1}', "is damaged"),
        (b'{"smoke_version": 0, "model": "m", "server": null, "fails": {}}', "is damaged"),
        (b'{"smoke_version": 1, "model": "m", "server": null, "fails": ["n"]}', "is damaged"),
        (b'{"smoke_version": 2, "rows": []}', "newer serve-eval (version 2)"),
    ],
)
def test_a_file_that_cannot_be_used_is_exit_code_2(content, told, tmp_path):
    file = tmp_path / "known.json"
    if content is not None:
        file.write_bytes(content)
    for more in ("", "--dry-run"):
        done = serve_eval(f"smoke 127.0.0.1:9 --known {file} {more}", exits=2, tells=told)
        assert "--write-known" in done.stderr


def test_a_folder_is_no_file_of_known_failures(tmp_path):
    for flag in ("--known", "--write-known"):
        serve_eval("smoke 127.0.0.1:9", flag, tmp_path, exits=2, tells=flag)
    serve_eval(
        f"smoke 127.0.0.1:9 --write-known {tmp_path}/no/known.json",
        exits=2,
        tells="is not a folder",
    )


def test_a_smoke_test_that_stopped_writes_and_excuses_nothing(tmp_path):
    file = tmp_path / "known.json"
    dead = serve_eval(f"smoke 127.0.0.1:9 --write-known {file}")
    assert (dead.returncode, file.exists()) == (4, False)
    assert "was not written, because not all checks ran" in dead.stderr
    killing = "--level full --set smoke.timeout=4 --json"
    night = json.loads(_smoke(killing, quirks=("dies_of_long_prompts",)).stdout)["result"]
    told = {row["name"]: row["told"] for row in night["rows"] if row["outcome"] == "FAIL"}
    assert "long_prompt" in told
    fails = {"reachable": f"http://127.0.0.1:9/v1 {dead.stdout}", **told}
    head = {"smoke_version": 1, "model": "m", "server": None}
    file.write_text(json.dumps({**head, "fails": fails}))
    serve_eval(f"smoke 127.0.0.1:9 --known {file}", exits=4)
    files = f"--known {file} --write-known {file}"
    done = json.loads(_smoke(f"{killing} {files}", quirks=("dies_of_long_prompts",)).stdout)[
        "result"
    ]
    assert (done["exit_code"], done["counts"]["KNOWN"], done["counts"]["FAIL"]) == (1, len(told), 0)
    assert done["stopped"] == "a short request was no longer answered after long_prompt"
    assert read_json(file)["fails"] == fails


def _in_github(folder, *arguments, **more):
    """Return a smoke test as a job of GitHub sees it: with its annotations and its summary."""
    summary = folder / "step.md"
    server = create(Quirks(**more))
    with server.serve_in_thread() as url:
        given = url if "127.0.0.1:9" not in arguments else ()
        done = serve_eval(
            "smoke",
            *filter(None, [given]),
            *arguments,
            GITHUB_ACTIONS="true",
            GITHUB_STEP_SUMMARY=str(summary),
        )
    marked = [line for line in done.stderr.splitlines() if line.startswith("::")]
    text = summary.read_text()
    summary.unlink()
    return done, marked, text


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("given", [(), ("-q",), ("127.0.0.1:9",)])
def test_github_is_told_once(folder, given, tmp_path):
    more = ("-o", tmp_path / "out") if folder else ()
    _, marked, text = _in_github(tmp_path, *given, *more, names=frozenset(("unhealthy",)))
    assert marked
    assert len(marked) == len(set(marked))
    assert text.count("\n### ") == 1


def test_a_night_like_the_last_one_warns_of_nothing(known, tmp_path):
    bad = frozenset(("unhealthy", "one_index", "no_tools"))
    line = tmp_path / "line.txt"
    done, marked, _ = _in_github(tmp_path, "--known", known, "--notify-text", line, names=bad)
    assert (done.returncode, marked) == (0, [])
    assert "35 passed, 3 known, 1 unsupported as before" in line.read_text()
    new = frozenset((*bad, "no_logprobs"))
    done, marked, _ = _in_github(tmp_path, "--known", known, names=new)
    assert done.returncode == 1
    assert marked
    assert all(one.startswith("::error") for one in marked)


def test_what_is_unsupported_is_no_warning_where_all_passed(tmp_path):
    done, marked, _ = _in_github(tmp_path, names=frozenset(("no_tools",)))
    assert done.returncode == 0
    assert marked
    assert all(one.startswith("::notice") for one in marked)


def test_a_dead_port_is_no_other_model(known):
    done = serve_eval(f"smoke 127.0.0.1:9 --known {known}", exits=4)
    assert "was written for" not in done.stdout
    assert "mended" not in done.stdout


def test_a_known_check_that_counts_is_red_if_its_count_fell_clearly(tmp_path):
    file = tmp_path / "known.json"
    asked = [question.text for question in questions()]
    wrong = {f"{text}\nReply with the answer only.": "no idea" for text in asked}
    few = dict(list(wrong.items())[15:])  # the other 15 are right
    _smoke(f"--write-known {file}", knows=dict(list(wrong.items())[8:]))  # 8 of 20 are right
    content = read_json(file)
    assert content["counts"] == {"questions": [8, 20]}
    for known, knows, outcome in [
        ([8, 20], wrong, "FAIL"),  # p = .0016
        ([6, 20], wrong, "KNOWN"),  # p = .010
        ([8, 20], few, "KNOWN"),
        (None, wrong, "FAIL"),  # a file of an earlier version has the words only
        ([80, 20], wrong, "KNOWN"),  # no count
    ]:
        counts = {} if known is None else {"questions": known}
        file.write_text(json.dumps({**content, "counts": counts}))
        done = _smoke(f"--known {file} --json", knows=knows)
        assert _rows(done)["questions"] == outcome, (known, done.stdout)
        assert done.returncode == (outcome == "FAIL")
        told = next(
            row["told"]
            for row in json.loads(done.stdout)["result"]["rows"]
            if row["name"] == "questions"
        )
        assert ("clearly fewer than the known 8 of 20: p = 0.002" in told) is (outcome == "FAIL")


def test_the_summary_says_once_what_is_unsupported_or_known(known, tmp_path):
    bad = ("unhealthy", "one_index", "no_tools", "no_guided")
    _smoke(f"--known {known} -o {tmp_path}/out", quirks=bad)
    summary = (tmp_path / "out/summary.md").read_text()
    for name in ("tools", "health", "n"):
        assert len(re.findall(rf"\*\*{name}\*\*|\| {name} \|", summary)) == 1, summary
    assert summary.count("no longer supported: ignored") == 1 + 2 * 3  # the line; table, sentence


def test_what_is_unsupported_as_before_is_counted_apart(tmp_path):
    known = tmp_path / "known.json"
    _smoke(f"--write-known {known}", quirks=("no_tools",))
    assert read_json(known)["unsupported"] == ["tools"]
    shown = _smoke(f"--known {known}", quirks=("no_tools",)).stdout
    assert "1 unsupported as before\n lacks    as before: tools\n" in shown
    assert "none was called" not in shown
    every = _smoke(f"--known {known} -v", quirks=("no_tools",)).stdout
    assert re.search(r"^ UNSUPPORTED  tools .* none was called: ", every, re.MULTILINE), every
    other = read_json(known) | {"model": "another"}
    known.write_text(json.dumps(other))
    shown = _smoke(f"--known {known}", quirks=("no_tools",)).stdout
    assert "1 unsupported\n lacks    tools\n" in shown
