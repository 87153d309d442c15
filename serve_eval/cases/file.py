"""Read case files, also encrypted ones, into modules of cases, with all problems reported together.

A top-level key of a file is a module: a list of cases, or a mapping with `cases` and their common
settings. Any other mapping is shared by the prompts of all files (usually under `resources`).
Modules of the same name in several files are one module. A folder stands for the case files in it.
Files with the endings of BioChatter's files follow its rules, see serve_eval.cases.biochatter.
Files that end with `.enc` are encrypted, see serve_eval.cases.file.

The file is a Fernet token (AES in CBC mode with an HMAC) of the YAML. The key comes only from the
environment.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval import yaml_source
from serve_eval.cases import biochatter, form
from serve_eval.cases.form import case_problems, has_cases
from serve_eval.errors import PlanError, install_hint
from serve_eval.frozen import freeze
from serve_eval.schema import SourceFile
from serve_eval.whole_file import write_named_file

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


ENDING = ".enc"
VARIABLE = "SERVE_EVAL_HOLDOUT_KEY"
_NEW_KEY = f"export {VARIABLE}=$(openssl rand -base64 32 | tr '+/' '-_')"


def decrypt(file: Path, key: str) -> str:
    """Return the text of an encrypted file.

    Raises PlanError if the key is missing or wrong, or if the file is damaged.
    """
    if not key:
        raise PlanError(
            f"{file}: is encrypted, but {VARIABLE} is not set",
            hint="Export the key with which it was encrypted.",
        )
    cipher = _cipher(key)
    from cryptography.fernet import InvalidToken

    try:
        return cipher.decrypt(file.read_bytes()).decode()
    except OSError as error:
        raise PlanError(f"{file}: cannot be read: {error.strerror}") from error
    except (InvalidToken, UnicodeDecodeError) as error:
        raise PlanError(
            f"{file}: cannot be decrypted: the key in {VARIABLE} is wrong, or the file is damaged",
            hint="Export the key with which it was encrypted.",
        ) from error


def encrypt(source: Path, target: Path, key: str) -> None:
    """Write an encrypted copy of a file.

    Raises PlanError if there is no key, or if a file cannot be read or written.
    """
    if not key:
        raise PlanError(f"{VARIABLE} is not set", hint=f"Create a key and keep it: {_NEW_KEY}")
    cipher = _cipher(key)
    try:
        token = cipher.encrypt(source.read_bytes())
        write_named_file(target, token + b"\n")
    except OSError as error:
        raise PlanError(f"{error.filename}: {error.strerror}") from error


def _cipher(key: str) -> Fernet:
    try:
        from cryptography.fernet import Fernet
    except ImportError as error:
        raise PlanError(
            "encrypted cases need the package cryptography", hint=install_hint("holdout")
        ) from error
    try:
        return Fernet(key.strip())
    except ValueError as error:
        raise PlanError(
            f"{VARIABLE} is not a key: {error}", hint=f"Create a new one: {_NEW_KEY}"
        ) from error


BIOCHATTER = ("_data.yaml", "_data.yaml.enc")
_ENDINGS = (".yaml", ".yml", f".yaml{ENDING}", f".yml{ENDING}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MARKS = [key for key in form.keys(form.ModuleForm) if key not in ("description", "group")]


@freeze
class RawCase:
    """A case as it is in a file.

    `where(*keys)` returns "file:line" of one of its keys. `unquoted` has, by keys, the problem of
    each expected value that YAML may read as another kind: yes, 3.10. `folder`
    contains its media (None: the file is encrypted).
    """

    name: str
    content: Mapping[str, Any]
    where: Callable[..., str]
    folder: Path | None
    biochatter: bool
    unquoted: Mapping[tuple[Any, ...], str] = field(default_factory=dict)

    @property
    def holdout(self) -> bool:
        return self.folder is None


@freeze
class CaseModule:
    """The cases of one module, and their common settings.

    `where(key)` returns "file:line" of a common key.
    """

    name: str
    common: Mapping[str, Any]
    where: Callable[[str], str]
    cases: tuple[RawCase, ...]


@freeze
class CaseFiles:
    """The contents of a list of case files."""

    modules: Mapping[str, CaseModule]
    resources: Mapping[str, Any]
    files: tuple[SourceFile, ...]


def read(paths: Sequence[str]) -> CaseFiles:
    """Read the modules of files and folders. Raises PlanError with every problem."""
    files = _files(paths)
    stamps = tuple((str(file), *_stamp(file)) for file in files)
    return _read(stamps, os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=8)
def _read(stamps: tuple[tuple[Any, ...], ...], key: str) -> CaseFiles:
    """Read files with a cache, because a plan builds each of its tasks several times.

    `stamps` and `key` change when the files change.
    """
    reader = _Reader()
    for file, *_ in stamps:
        reader.take(Path(file), key)
    if reader.problems:
        raise PlanError(list(dict.fromkeys(reader.problems)), hint=reader.hint)
    if not reader.modules:
        raise PlanError(
            f"{', '.join(one.path for one in reader.files)}: no tasks, only values that prompts"
            " share"
        )
    modules = {name: one.module(name) for name, one in reader.modules.items()}
    return CaseFiles(modules=modules, resources=reader.resources, files=tuple(reader.files))


def _files(paths: Sequence[str]) -> list[Path]:
    problems, found = [], []
    for path in (Path(path).expanduser() for path in paths):
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.name.endswith(_ENDINGS))
            problems += (
                []
                if inside
                else [f"{path}: contains no case file (*.yaml, *.yml, also with {ENDING})"]
            )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            problems.append(f"{path}: no such file or folder of cases")
    if problems:
        raise PlanError(problems, hint="serve-eval data cases new FILE writes an example.")
    return list({file.resolve(): file for file in found}.values())


def _stamp(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_size


@dataclass(slots=True)
class _Growing:
    """A module while its files are being read."""

    common: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    cases: list[RawCase] = field(default_factory=list)

    def module(self, name: str) -> CaseModule:
        places = self.places
        return CaseModule(
            name=name,
            common=self.common,
            where=lambda key: places.get(key, name),
            cases=tuple(self.cases),
        )


class _Reader:
    """Collects modules and problems over all files."""

    def __init__(self) -> None:
        self.modules: dict[str, _Growing] = {}
        self.resources: dict[str, Any] = {}
        self.files: list[SourceFile] = []
        self.problems: list[str] = []
        self.hint = ""
        self._shared: dict[str, str] = {}

    def take(self, file: Path, key: str) -> None:
        try:
            document = _document(file, key)
        except PlanError as error:
            self.problems += error.problems
            self.hint = self.hint or error.hint
            return
        self.files.append(
            SourceFile(path=str(file), sha256=hashlib.sha256(file.read_bytes()).hexdigest())
        )
        content = document.value
        if not isinstance(content, Mapping) or not content:
            self.problems.append(
                f"{file}:1: expected tasks with cases, such as `capitals:` with a list below it"
            )
            return
        for name, value in content.items():
            if name == form.RESOURCES and isinstance(value, Mapping):
                for key_, shared in value.items():
                    self._share(document, str(key_), shared, (name, key_))
            elif isinstance(value, list):
                self._module(document, file, name, {"cases": value}, ())
            elif isinstance(value, Mapping) and (
                any(mark in value for mark in _MARKS) or has_cases(value)
            ):
                self._module(document, file, name, value, ("cases",))
            elif isinstance(value, Mapping):
                self._share(document, str(name), value, (name,))
            else:
                self._add(
                    document,
                    (name,),
                    f"{name}: expected a list of cases, or a mapping with `cases`",
                )

    def _add(self, document: yaml_source.YamlDocument, path: tuple[Any, ...], message: str) -> None:
        self.problems.append(f"{document.name}:{document.line(*path)}: {message}")

    def _share(
        self, document: yaml_source.YamlDocument, name: str, value: Any, path: tuple[Any, ...]
    ) -> None:
        place = f"{document.name}:{document.line(*path)}"
        if name in self._shared and self.resources[name] != value:
            self._add(document, path, f"{name}: has another value at {self._shared[name]}")
        self._shared.setdefault(name, place)
        self.resources.setdefault(name, value)

    def _module(
        self,
        document: yaml_source.YamlDocument,
        file: Path,
        name: Any,
        raw: Mapping[str, Any],
        below: tuple[str, ...],
    ) -> None:
        """Add a module of a file. `below` are the keys between its name and its list of cases."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self._add(
                document,
                (name,),
                f"{name!r} is not a task name: use at most 100 letters, digits, dots, dashes and"
                " underscores",
            )
            return
        one = self.modules.setdefault(name, _Growing())
        common = {key: value for key, value in raw.items() if key != "cases"}
        for key, message in form.problems(dict(common), form.ModuleForm, leave=("cases",)):
            if key != "cases":
                self._add(document, (name, key), f"{name}.{key}: {message}")
        for key, value in common.items():
            place = f"{document.name}:{document.line(name, key)}"
            if key in one.common and one.common[key] != value:
                self._add(
                    document, (name, key), f"{name}.{key}: has another value at {one.places[key]}"
                )
            one.common.setdefault(key, value)
            one.places.setdefault(key, place)
        cases = raw.get("cases")
        if not isinstance(cases, list):
            missing = (
                "is missing: the list of the task's cases (values that prompts share go into"
                f" `{form.RESOURCES}`)"
            )
            said = "expected a list" if "cases" in raw else missing
            self._add(document, (name, *below), f"{name}.cases: {said}")
            return
        if not cases:
            self._add(document, (name, *below), f"{name}: has no case")
        theirs = file.name.endswith(BIOCHATTER)
        for i, content in enumerate(biochatter.assemble(cases) if theirs else cases):
            if not (theirs and biochatter.holds_shared(content)):
                self._case(document, file, one, (name, *below, i), content, theirs)

    def _case(
        self,
        document: yaml_source.YamlDocument,
        file: Path,
        module: _Growing,
        path: tuple[Any, ...],
        content: Any,
        theirs: bool,
    ) -> None:
        """Add one case. `theirs` means that the file follows BioChatter's rules."""
        given = content.get("case") if isinstance(content, Mapping) else None
        name = given if isinstance(given, str) else f"number {path[-1] + 1}"
        if isinstance(content, Mapping) and theirs and "input" not in content:
            pass  # BioChatter's lists of cases contain other entries too.
        elif problems := list(case_problems(content, strict=not theirs)):
            for keys, message in problems:
                said = f"{'.'.join(map(str, keys))}: {message}" if keys else message
                self._add(document, (*path, *keys), f"{path[0]}: case {name}: {said}")
            return

        written = {} if theirs else document.written
        for keys, message in form.list_in_prompt(content, written, path).items():
            self._add(document, (*path, *keys), f"{path[0]}: case {name}: {message}")

        def where(*keys: object) -> str:
            return f"{document.name}:{document.line(*path, *keys)}"

        folder = None if file.name.endswith(ENDING) else file.parent
        module.cases.append(
            RawCase(
                name=name,
                content=content,
                where=where,
                folder=folder,
                biochatter=theirs,
                unquoted=form.list_expected(content, written, path),
            )
        )


def _document(file: Path, key: str) -> yaml_source.YamlDocument:
    if file.name.endswith(ENDING):
        return yaml_source.parse(decrypt(file, key), str(file), PlanError, text_keys=True)
    return yaml_source.read(file, PlanError, text_keys=True)
