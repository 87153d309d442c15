"""What can be done to the weights of the embedded model, apart from what does it, which is slow to
import.
"""

from __future__ import annotations

from typing import Literal

Damage = Literal["none", "int8", "int4", "int4-g32", "int3"]
"""How the linear layers are rounded: to so many bits with a scale per row, or per group of 32
columns."""
