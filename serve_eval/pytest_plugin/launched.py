"""Place the launcher of a test, its options and the address in the keys of a plan file."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serve_eval.pytest_plugin.asked import AskedEvaluation, LauncherOption


def place_launcher(
    asked: AskedEvaluation,
    file: MutableMapping[str, Any],
    settings: MutableMapping[str, Any],
    base_url: str | None,
) -> str:
    """Set what answers in `file`, the keys of the plan, and in `settings`, which override them.

    `base_url` is asked if nothing else is named. Returns the problem with options that no launcher
    takes, or "". Raises PlanError if the checkpoint has no place.
    """
    if asked.launcher is not None:
        file["launcher"] = _add_options(asked)
        file.pop("base_url", None)
    elif "base_url" in settings:
        file.pop("launcher", None)
    elif base_url is not None and "launcher" not in file:
        settings["base_url"] = base_url
    if asked.launcher is not None or not asked.launcher_options:
        return ""
    if "launcher" not in file:
        address = settings.get("base_url") or file.get("base_url")
        if unused := _describe_unused(asked, address):
            return unused
    given = _read_launcher(file.get("launcher", "external"))
    file["launcher"] = {**given, **asked.launcher_options}
    return ""


def _add_options(asked: AskedEvaluation) -> dict[str, object]:
    """Return the launcher with its options in the form of a plan file.

    Raises PlanError if the checkpoint has no place among them.
    """
    from serve_eval.errors import PlanError
    from serve_eval.plugins.values import load_launcher

    assert asked.launcher is not None
    launcher = {**_read_launcher(asked.launcher), **asked.launcher_options}
    if asked.model_path is None or "model" in launcher:
        return launcher
    if "model" not in load_launcher(str(launcher.get("name"))).options:
        raise PlanError(
            f"MODEL_PATH: the launcher {launcher.get('name')} has no option `model`",
            hint="Put the path into LAUNCHER, where this launcher has it."
            if launcher.get("name") != "rehearsal"
            else "Name the launcher itself, with rehearse=True.",
        )
    return {**launcher, "model": asked.model_path}


def _read_launcher(given: LauncherOption) -> dict[str, object]:
    """Return a launcher in the form of a plan file that has its name under `name`."""
    if isinstance(given, str):
        return {"name": given}
    if len(given) == 1 and "name" not in given:
        [(name, options)] = given.items()
        if options is None or isinstance(options, Mapping):
            return {"name": name, **(options or {})}
    return dict(given)


def _describe_unused(asked: AskedEvaluation, address: object) -> str:
    """Return which options of a launcher would have no effect, since a test names none."""
    from serve_eval.plugins.values import load_launcher

    known = load_launcher("external").options
    names = ", ".join(name for name in asked.launcher_options if name not in known)
    if not names:
        return ""
    asks = "" if address is None else f": the address {address} decides what is asked"
    return f"launcher_options: no launcher is named that takes {names}{asks}"
