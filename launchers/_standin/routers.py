"""Choice of the next worker by the type of an orchestrator's router."""

from __future__ import annotations

from serve_eval.launchers._standin.config import RouterSection
from serve_eval.launchers._standin.fields import CompletionRequest, Request
from serve_eval.launchers._standin.options import Flavour

TYPES: dict[Flavour, tuple[str, ...]] = {
    "old": ("round_robin", "load_balancing", "kv_cache_aware"),
    "v12": ("round_robin", "load_balancing", "kv_cache_aware", "conversation"),
    "main": (
        "round_robin",
        "load_balancing",
        "kv_cache_aware",
        "conversation",
        "centralized_kv_cache_aware",
        "remote_http",
    ),
}


class Router:
    """A router that takes workers in turns, or with `load_balancing` the least busy one.

    Raises ValueError for a type that the flavour does not have.
    """

    def __init__(self, section: RouterSection, servers: list[str], flavour: Flavour) -> None:
        self._kind = section.type.lower()
        if self._kind not in TYPES[flavour]:
            known = list(TYPES[flavour])
            raise ValueError(
                f"Unsupported router type: {section.type}. Supported types are: {known}"
            )
        self.servers, self.busy = list(servers), dict.fromkeys(servers, 0)
        self._number, self._turn = section.server_role, 0
        self._counts_tokens = flavour != "main" and bool(section.args.get("use_tokens"))
        self.retries = 0

    def next(self, request: Request, but: str | None = None) -> str:
        """Return the next worker.

        Raises ValueError without a server, and for a request whose tokens a version before main
        cannot count: any for generation, and any chat.
        """
        if not self.servers:
            raise ValueError(f"No {self._number} servers available")
        if (
            self._kind == "load_balancing"
            and self._counts_tokens
            and (self._number or not isinstance(request, CompletionRequest))
        ):
            raise ValueError("Unsupported request type: its tokens cannot be counted")
        free = [one for one in self.servers if one != but] or self.servers
        if self._kind == "load_balancing":
            return min(free, key=lambda one: self.busy.get(one, 0))
        chosen = self.servers[self._turn % len(self.servers)]
        self._turn += 1
        return chosen if chosen in free else self.next(request, but)
