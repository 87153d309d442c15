"""Search the output of every command for secrets that an endpoint echoes.

The commands are those that reach an endpoint or read its answers. Every byte of their output is
searched.

`python -m tests.secrets.search` prints the outputs and the longest piece of a secret in each.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from tests.cli.command import environment, serve_eval
from tests.secrets.echoing import (
    BROKEN,
    CALLS,
    ERRORS,
    FIELDS,
    KEY,
    ODD,
    SOUND,
    TEXTS,
    WAYS,
    echoing,
    left_in,
)

JUDGE = "judge-9fHs4Kq7ZtBv2LxW"
PROXY = "proxy-Zk3Wq8TnY5rDc7Lm"
SECRETS = (KEY, ODD, JUDGE, PROXY)
ENOUGH = 12
"""Consecutive characters of a secret that are too many: half of the shortest."""


@dataclass(slots=True)
class Search:
    """The longest piece of a secret, in characters, by command and output below `root`."""

    root: Path
    found: dict[tuple[str, str], int] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    _known: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def command(self, name, *arguments, key=KEY, **environ):
        """Run a command line, search its output and files, and return its standard output."""
        variables = {
            "HOME": str(self.root / "home"),
            "OPENAI_API_KEY": key,
            "JUDGE_KEY": JUDGE,
            **environ,
        }
        done = serve_eval(*arguments, **variables)
        self.say(name, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def say(self, name, code, stdout, stderr):
        """Search a command's output, and the files that it wrote below the folder."""
        self.codes[name] = code
        for stream, text in (("stdout", stdout), ("stderr", stderr)):
            self._note(name, stream, text.encode())
        names = []
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                stat = path.stat()
                if self._known.get(path) != (stat.st_mtime_ns, stat.st_size):
                    self._known[path] = stat.st_mtime_ns, stat.st_size
                    kind = path.name if path.suffix != ".jsonl" else f"{path.parent.name}/*.jsonl"
                    self._note(name, kind, path.read_bytes())
                    names.append(str(path.relative_to(self.root)))
        self._note(name, "names of files", "\n".join(names).encode())

    def _note(self, name, output, data):
        longest = left_in(data, *SECRETS)
        self.found[name, output] = max(longest, self.found.get((name, output), 0))


def cases(path, ways):
    """Write a file with a case for each of these ways in which a server can echo a secret."""
    function = {"name": "search", "parameters": {"type": "object"}}
    tools = {"tools": [{"type": "function", "function": function}]}
    asked = [
        {
            "case": f"c{number}",
            "input": {"prompt": f"Answer 42, way <{way}>", **(tools if way in CALLS else {})},
            "expected": {"answer": "42"},
            "scorer": "words",
        }
        for number, way in enumerate(ways)
    ]
    path.write_text(json.dumps({path.stem: {"cases": asked}}))
    return str(path)


def search(root):
    """Search the outputs of all commands, in one folder."""
    found = Search(root)
    (root / "home").mkdir()
    every, sound = cases(root / "every.yaml", WAYS), cases(root / "sound.yaml", SOUND)
    with echoing() as (url, script), echoing(SOUND) as (other, _), echoing(WAYS) as (failing, _):
        _evaluate(found, url, every, sound)
        assert script.seen >= {*TEXTS, *FIELDS, *CALLS, *ERRORS, *BROKEN}
        assert script.keys == {KEY, ODD, JUDGE}
        _read(found, url, other)
        _compare(found, url, other, sound)
        _check(found, url, other, failing)
        _watch(found, url, other, sound)
        _fail(found, failing, every)
        _processes(found, url, every)
    return found


def glance(root):
    """Search the outputs of a run, of the commands that read it, and of smoke."""
    found = Search(root)
    (root / "home").mkdir()
    every = cases(root / "every.yaml", WAYS)
    with echoing() as (url, script), echoing(WAYS) as (failing, _):
        found.command(
            "run --stream",
            "run",
            "--base-url",
            url,
            *_asking(every),
            "--set",
            "limits.stream=true",
            "-o",
            root / "run",
        )
        assert script.keys == {KEY}
        found.command("verdict --json", "judge", root / "run", "--json")
        found.command("show --wrong", "show", root / "run", "--wrong", "--failed", "--all", "-v")
        found.command("export", "runs", "export", root / "run")
        found.command(
            "smoke, failing", "smoke", failing, "-m", "m", "--junit", root / "failing.xml"
        )
    return found


def _asking(file):
    return [
        "-m",
        "m",
        "--cases",
        file,
        "--no-reference",
        "--set",
        "limits.max_attempts=1",
        "--set",
        "limits.max_error_rate=1",
    ]


def _evaluate(found, url, every, sound):
    root, runs, at = found.root, _asking(every), ("--base-url", url)
    found.command("run, sound", "run", *at, *_asking(sound), "-o", root / "sound")
    found.command("run", "run", *at, *runs, "-o", root / "run")
    found.command(
        "run --stream", "run", *at, *runs, "--set", "limits.stream=true", "-o", root / "streamed"
    )
    found.command("run, an odd key", "run", *at, *runs, "-o", root / "odd", key=ODD)
    header = ["--header", "Authorization: Bearer ${TEAM}", "--header", "X-Team: ${TEAM}"]
    found.command("run --header", "run", *at, *runs, *header, "-o", root / "team", TEAM=ODD)
    found.command("run --resume", "run", "--resume", root / "run", "--rerun", "all", "--json")
    found.command("run --dump-prompts", "run", *at, *runs, "--dump-prompts", root / "prompts.jsonl")
    judged = root / "judged.yaml"
    judge = {"judges": [{"base_url": url, "model": "j", "api_key_env": "JUDGE_KEY"}]}
    asked = [
        {"case": way, "input": {"prompt": f"Answer 42, way <{way}>"}, "expected": {"answer": "42"}}
        for way in ("plain", "reasoning", "error of OpenAI")
    ]
    judged.write_text(json.dumps({"judged": {"scorer": {"judge": judge}, "cases": asked}}))
    found.command("run, judged", "run", *at, *_asking(str(judged)), "-o", root / "judged")
    suite = root / "suite.yaml"
    common = {"model": "m", "cases": [every], "no_reference": True, "base_url": url}
    limits = {"max_attempts": 1, "max_error_rate": 1.0}
    plans = [{"name": name, "limits": {**limits, "stream": name == "b"}} for name in "ab"]
    suite.write_text(json.dumps({"defaults": common, "plans": plans}))
    found.command("suite", "run", suite, "-o", root / "suite")
    found.command(
        "run --launcher",
        "run",
        "--launcher",
        "simulated",
        *_asking(sound),
        "-o",
        root / "simulated",
    )
    logging = shlex.join([sys.executable, str(Path(__file__).with_name("logging_server.py"))])
    started = [
        "--launcher",
        "trtllm",
        "--set",
        f"launcher.command={logging}",
        "--set",
        "launcher.gpus=[0]",
    ]
    found.command("run, a log", "run", *started, *_asking(sound), "-o", root / "logged")
    assert "Bearer" in next((root / "logged/logs").glob("*.log")).read_text()
    ending = [*started, "--set", 'launcher.env={ENDS_AT: "6"}']
    found.command("run, a server ends", "run", *ending, *_asking(sound), "-o", root / "ended")
    kept = ["--keep-servers", "--api-key-env", "TEAM", "-o", root / "ended_held"]
    held = {"TEAM": KEY, "XDG_STATE_HOME": str(root / "home/state")}
    found.command("run, a held server ends", "run", *ending, *_asking(sound), *kept, key="", **held)
    launcher = {
        "name": "trtllm",
        "command": shlex.split(logging),
        "gpus": [0],
        "env": {"ENDS_AT": "6"},
    }
    plan = {
        "launcher": launcher,
        "model": "m",
        "cases": [sound],
        "no_reference": True,
        "limits": limits,
    }
    suite.write_text(json.dumps({"plans": [{"name": "a", **plan}]}))
    found.command("suite, a server ends", "run", suite, "-o", root / "ended_suite")


def _read(found, url, other):
    run, sound = found.root / "run", found.root / "sound"
    found.command("verdict", "judge", run)
    found.command("verdict --json", "judge", run, "--json")
    found.command("rescore", "judge", "--rescore", run, "--json")
    found.command("export", "runs", "export", sound)
    found.command("export, streamed", "runs", "export", found.root / "streamed")
    found.command("show", "show", run)
    found.command("show --json", "show", run, "--wrong", "--failed", "--all", "--json")
    references = ["--references-dir", str(found.root / "references")]
    found.command("references register", "references", "register", sound, *references)
    found.command("references show", "references", "show", "cases-sound", *references)
    found.command("drift", "runs", "trend", found.root, "--json")
    for one in ("run", "streamed", "sound", "judged", "suite"):
        found.command(f"diagnose {one}", "diagnose", found.root / one)
    found.command("diagnose --json", "diagnose", run, "--json")
    for name in ("run", "streamed"):
        records = (found.root / name / "samples/cases-every.jsonl").read_text().splitlines()
        samples = sorted({json.loads(record)["id"] for record in records})
        found.command(f"capsule {name}", "show", found.root / name, *samples, "--capsule")
    workers = ["--worker", url, "--worker", other, "--samples", "20"]
    found.command("attribute", "check", "workers", run, *workers)
    found.command("attribute --json", "check", "workers", run, *workers, "--json")


def _compare(found, url, other, sound):
    asking = ["-m", "m", "--cases", sound, "--set", "compare.show_flips=40"]
    found.command(
        "compare", "compare", url, other, *asking, "--self", "20", "-o", found.root / "compared"
    )
    found.command(
        "compare --json",
        "compare",
        found.root / "sound",
        other,
        "--json",
        "-o",
        found.root / "again",
    )
    found.command("diagnose compared", "diagnose", found.root / "compared")
    found.command(
        "invariants", "check", "invariants", url, *asking[:4], "-o", found.root / "invariants"
    )


def _check(found, url, other, failing):
    found.command("smoke", "smoke", other, "-m", "m", "--junit", found.root / "smoke.xml")
    found.command(
        "smoke, failing", "smoke", failing, "-m", "m", "--junit", found.root / "failing.xml"
    )
    for at in (url, other, other, failing):  # each way goes to a different request every time
        found.command(
            "smoke --level full",
            "smoke",
            at,
            "-m",
            "m",
            "--level",
            "full",
            "--json",
            "--set",
            "smoke.timeout=5",
        )


def _watch(found, url, other, sound):
    script, alarm = found.root / "alarm.sh", found.root / "alarm"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    look = (
        "import urllib.request as r;"
        f" print(r.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
    )
    lines = [
        "exec > " + shlex.quote(str(alarm)),
        "cat",
        "env",
        shlex.join([sys.executable, "-c", look]),
    ]
    script.write_text("\n".join(lines))
    flags = [
        "-m",
        "m",
        "--rounds",
        "4",
        "--every",
        "0.1s",
        "--set",
        "watch.passes=2",
        "--limit",
        "30",
        "--set",
        "watch.seed=1",
    ]
    told = ["--on-alarm-command", shlex.join(["sh", str(script)]), "--metrics-port", port]
    told += ["--webhook", url.removesuffix("/v1") + "/hook"]
    asked = ["--cases", sound, "--reference-value", "99", "--budget-tokens", "100000"]
    found.command("watch", "watch", other, *flags, *asked, *told, "-o", found.root / "watch")
    assert "serve_eval_" in alarm.read_text()


def _fail(found, url, every):
    """Run commands that end before all samples are asked."""
    flags = ["--cases", every, "--no-reference", "-o"]
    found.command("run, no model", "run", "--base-url", url, *flags, found.root / "unnamed")
    found.command(
        "run, refused", "run", "--base-url", url, "-m", "m", *flags, found.root / "refused"
    )
    through = [
        "--set",
        "connection.proxy="
        + str(
            "http://${USER_OF_IT}:${PASSWORD}@" + url.removeprefix("http://").removesuffix("/v1")
        ),
    ]
    away = ["--base-url", "http://127.0.0.1:9/v1", "-m", "m", *through]
    secret = {"USER_OF_IT": "u", "PASSWORD": PROXY}
    found.command("run --proxy", "run", *away, *flags, found.root / "proxied", **secret)


def _processes(found, url, every):
    """Search what the list of processes shows of a run and its children."""
    command = [sys.executable, "-m", "serve_eval", "run", "--base-url", url, *_asking(every), "-o"]
    command.append(str(found.root / "listed"))
    variables = environment(HOME=str(found.root / "home"), OPENAI_API_KEY=KEY)
    ended, lines = Event(), set()

    def look():
        while not ended.wait(0.02):
            lines.update(_command_lines(os.getpid()))

    watching = Thread(target=look)
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        watching.start()
        try:
            stdout, stderr = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                process.kill()
            ended.set()
            watching.join()
    found.say("run, a process", process.returncode, stdout, stderr)
    assert any(b"serve_eval" in line for line in lines)
    found.found["run, a process", "list of processes"] = left_in(b"\n".join(lines), *SECRETS)


def _command_lines(pid):
    """Yield the command lines of all processes below one."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield Path(f"/proc/{child}/cmdline").read_bytes()
                yield from _command_lines(child)
    except OSError:
        return


def main():
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = search(Path(folder))
    for (command, output), longest in found.found.items():
        print(f"{command:24} {output:34} {longest:3}{'  <-- FOUND' if longest >= ENOUGH else ''}")
    print(
        f"{len(found.found)} outputs of {len(found.codes)} commands,"
        f" {time.monotonic() - began:.0f} s"
    )
    print("exit codes:", found.codes)


if __name__ == "__main__":
    main()
