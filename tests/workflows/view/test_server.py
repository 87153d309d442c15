"""The pages of a folder over real sockets: who may read them, and what they say."""

import html
import http.client
import re
import shlex
import shutil
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.report.page.writer import render_page
from serve_eval.schema import VerdictOutcome
from serve_eval.storage.report_file import read_report, write_report
from serve_eval.storage.scores import read_values
from serve_eval.workflows.view import serve_folder
from serve_eval.workflows.view.document import make_document
from serve_eval.workflows.view.overview import read_folder
from tests.cli.command import serve_eval

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module", autouse=True)
def _without_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVE_EVAL_NO_PICTURES", "1")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("outputs")
    flags = "--launcher simulated -m org/m --tasks word_problems --limit 20"
    for name, accuracy in (("first", "0.9"), ("second", "0.3")):
        accurate = f"--set launcher.accuracy={accuracy} --set launcher.seed=7"
        serve_eval(f"run --no-reference -o {top}/a/{name} {flags} {accurate}")
    for i, outcome in enumerate((VerdictOutcome.FAIL, VerdictOutcome.PASS)):
        run = top / f"judged_{i}"
        shutil.copytree(top / "a/first", run)
        sessions = run / "environment.json"
        sessions.write_text(re.sub(r"\b20\d\d-", f"203{i}-", sessions.read_text()))
        report = read_report(run)
        task = report.tasks[0]
        judged = replace(task, verdict=replace(task.verdict, outcome=outcome))
        plan = replace(report.plan, model=HOSTILE)
        write_report(run, replace(report, plan=plan, tasks=(judged,)))
    return top


@pytest.fixture(scope="module")
def server(folder):
    with serve_folder(folder, render_page) as found:
        yield found


def _ask(server, path, method="GET", host=None):
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    target = path if path.startswith("//") else f"{address.path}{path}"
    connection.putrequest(
        method, target.removeprefix("/") if target[:2] == "//" else target, skip_host=True
    )
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, {k.lower(): v for k, v in answer.getheaders()}


@pytest.fixture(scope="module")
def index(server):
    status, page, headers = _ask(server, "")
    assert status == 200
    return page, headers


def test_the_index_lists_the_runs_with_links_that_work(server, index):
    page, headers = index
    for text in ("2 series", "a/first", "a/second", "NO REFERENCE"):
        assert text in page
    assert "sandbox allow-scripts" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer"
    links = {html.unescape(one) for one in re.findall(r'href="([^"#]+)"', page)}
    assert {"a/first/report.html", "compare?a=a%2Fsecond"} <= links
    for link in links:
        assert _ask(server, link)[0] == 200, link


def test_foreign_names_stay_text(index):
    page, _ = index
    assert HOSTILE not in page
    assert html.escape(HOSTILE) in page


def test_two_runs_stand_side_by_side_with_the_settings_that_differ(server):
    status, page, _ = _ask(server, "compare?a=a%2Ffirst&b=a%2Fsecond")
    assert status == 200
    text = " ".join(re.sub(r"<[^>]+>", " ", page[page.index("<main") :]).split())
    assert "A a/first" in text
    assert "B a/second" in text
    assert re.search(r"launcher\.options\.accuracy differs 0\.9 0\.3", text)
    assert "serve-eval compare" in text
    counts = re.search(r"(\d+) (\d+) (\d+) NO REFERENCE", text)
    lower, higher, both = counts.groups()
    scores = [
        read_values(server.folder / "a" / name, "word_problems") for name in ("first", "second")
    ]
    assert int(both) == 20
    assert int(lower) == sum(scores[1][key] < scores[0][key] for key in scores[0])
    assert int(higher) == sum(scores[1][key] > scores[0][key] for key in scores[0])


def test_another_host_is_refused(server):
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""):
        status, body, _ = _ask(server, "", host=host or " ")
        assert (status, "runs" in body) == (403, False), host
    assert _ask(server, "a/first/report.json", host=f"localhost:{port}")[0] == 200


def test_without_the_secret_there_is_nothing(server):
    for path in ("///", "//x/", f"//{server.secret[:-1]}x/", "//a/first/report.html"):
        assert _ask(server, path)[0] == 404, path


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "a/../../x.html",
        "..%2f..%2fetc%2fpasswd",
        "a/first/%2e%2e/%2e%2e/x.html",
        "a/first/scores/word_problems.jsonl",
        "a/first/lock",
        "compare?a=a%2Fnone",
        "compare?a=a%2Ffirst&b=..",
        "compare",
        "a",
        "a/first/report.html%00",
    ],
)
def test_no_path_leaves_the_folder(path, server):
    assert _ask(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_reads(method, server):
    assert _ask(server, "", method)[0] == 501


def test_head_has_no_body(server):
    status, body, headers = _ask(server, "a/first/report.json", "HEAD")
    assert (status, body) == (200, "")
    assert int(headers["content-length"]) > 0


def test_a_port_in_use_is_told(server, folder):
    with (
        pytest.raises(PlanError, match="cannot be used"),
        serve_folder(folder, render_page, port=server.server_port),
    ):
        pass


def test_a_written_index_has_the_runs_and_no_link_to_a_server(folder, tmp_path):
    out = tmp_path / "index.html"
    done = serve_eval(f"runs view {folder} -o {out}")
    assert (done.returncode, done.stderr) == (0, f"page: {out}\n")
    page = out.read_text()
    assert "a/second" in page
    assert "compare?" not in page
    assert out.stat().st_mode & 0o077 == 0


def test_a_folder_without_runs_is_told(tmp_path):
    with pytest.raises(RunFolderError, match="no finished run"):
        read_folder(tmp_path)
    serve_eval(f"runs view {tmp_path}", exits=2, tells="contains no finished run")


def test_the_first_line_tells_how_the_latest_runs_ended(index):
    told = "2 series: 1 passed, 1 not judged; no drift alarm"
    assert told in index[0]
    assert "verdict state-pass" in index[0]


@pytest.fixture
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Keep what the commands write out of this repository."""
    monkeypatch.chdir(tmp_path)


ASKED = (
    "run --launcher simulated -m org/m -t word_problems"
    " --set word_problems.num_samples=60 --set launcher.seed=7"
)


def _run(out, accuracy, more=""):
    words = shlex.split(f"{ASKED} --set launcher.accuracy={accuracy} {more}")
    done = serve_eval(*words, "-o", out)
    assert done.returncode in (0, 1, 3), done.stderr


def _view(folder):
    return make_document(read_folder(folder))


def _follow(document):
    """Run each command as it is printed, and return the exit codes."""
    codes = []
    for line in document.commands:
        program, *words = shlex.split(line)
        assert program == "serve-eval"
        done = serve_eval(*words)
        assert done.returncode != 2, (line, done.stderr)
        codes.append(done.returncode)
    return codes


@pytest.mark.usefixtures("simulated_here", "_in_a_folder_of_its_own")
def test_a_failure_is_compared_with_the_last_pass_and_diagnosed(tmp_path):
    nights, references = tmp_path / "my nights", tmp_path / "references"
    _run(tmp_path / "taken", 0.95, "--no-reference")
    serve_eval(f"references register {tmp_path}/taken --references-dir {references}")
    for name, accuracy in (("1", 0.95), ("2", 0.3)):
        _run(nights / name, accuracy, f"--references-dir {references}")
    document = _view(nights)
    assert document.verdict == "FAIL"
    first, second = document.commands
    assert first.startswith("serve-eval compare ")
    assert second.startswith("serve-eval diagnose ")
    assert _follow(document) == [1, 0]


@pytest.mark.usefixtures("simulated_here", "_in_a_folder_of_its_own")
def test_a_failed_comparison_is_diagnosed(tmp_path):
    for name, accuracy in (("a", 0.95), ("b", 0.3)):
        _run(tmp_path / "runs" / name, accuracy, "--no-reference")
    runs = tmp_path / "runs"
    serve_eval(f"compare {runs}/a {runs}/b -o {tmp_path}/night/compare", exits=1)
    document = _view(tmp_path / "night")
    assert [line.split()[:2] for line in document.commands] == [["serve-eval", "diagnose"]]
    assert _follow(document) == [0]


@pytest.mark.usefixtures("simulated_here", "_in_a_folder_of_its_own")
def test_a_killed_run_is_resumed(tmp_path):
    _run(tmp_path / "nights/1", 0.9, "--no-reference")
    (tmp_path / "nights/1/report.json").unlink()
    (tmp_path / "nights/1/summary.md").unlink()
    document = _view(tmp_path / "nights")
    assert document.verdict == "KILLED"
    assert [line.split()[:3] for line in document.commands] == [["serve-eval", "run", "--resume"]]
    assert _follow(document) == [3]
    assert _view(tmp_path / "nights").verdict == "NO REFERENCE"


@pytest.mark.usefixtures("simulated_here", "_in_a_folder_of_its_own")
def test_a_folder_of_rehearsals_says_that_nothing_counts(tmp_path):
    _run(tmp_path / "nights/1", 0.9, "--no-reference")
    file = tmp_path / "nights/1/report.json"
    file.write_text(file.read_text().replace('"rehearsal": false', '"rehearsal": true'))
    shutil.copytree(tmp_path / "nights/1", tmp_path / "nights/2")
    serve_eval(
        f"runs view {tmp_path}/nights -o {tmp_path}/v.html",
        exits=0,
        prints="2 rehearsals not counted",
    )
