"""Check whether an answer follows the instructions of its prompt, as IFEval and IFBench do."""

from __future__ import annotations

__all__: list[str] = []
