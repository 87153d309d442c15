"""Types of what a server puts in the place of sampling fields that a request leaves out."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Obedience = Literal["heeded", "ignored", "refused", "unknown"]
"""The answer of a server to a value in a request: it heeds, ignores or refuses it."""
ServerDefaults = Literal["neutral", "keep"]
"""The policy for sampling defaults: send neutral values in their place, or keep those of the
server."""


class SamplingDefault(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One field that decides an answer, and the server's handling of it.

    `name` is the usual name and `sent_as` the one that this server takes. `obedience` says if a
    value in a request counts. `adds` says if the server puts a value of its own in the place of a
    missing one (None: not known). `neutral` is the value that changes nothing (None: no value is
    known to be safe with this server). `value` is the server's own value, if its log names it.
    """

    name: str
    sent_as: str
    obedience: Obedience
    adds: bool | None = None
    neutral: float | None = None
    value: float | None = None


class SamplingDefaults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling defaults of an endpoint, and the cost of the probe that found them.

    `unknown` says why something is not known ("": everything is). `log` is the line of a server's
    log that names overridden defaults. `sent` are the neutral values that the run sends, by the
    names that the server takes.
    """

    fields: tuple[SamplingDefault, ...] = ()
    unknown: str = ""
    log: str = ""
    policy: ServerDefaults = "neutral"
    sent: dict[str, float] = {}
    requests: int = 0
    tokens: int = 0
    wall_s: float = 0.0

    @property
    def added(self) -> tuple[SamplingDefault, ...]:
        """The fields to which the server adds a value."""
        return tuple(one for one in self.fields if one.adds)

    @property
    def possible(self) -> tuple[SamplingDefault, ...]:
        """The fields of which it is not known whether the server adds a value."""
        return tuple(one for one in self.fields if one.adds is None)

    def find(self, name: str) -> SamplingDefault | None:
        """Return the field with this usual name, or None."""
        return next((one for one in self.fields if one.name == name), None)
