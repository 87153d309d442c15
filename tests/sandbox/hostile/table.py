"""List all hostile programs of this machine."""

import platform

from tests.sandbox.hostile.forging import FORGING
from tests.sandbox.hostile.reaching import REACHING
from tests.sandbox.hostile.taking import HIDING, TAKING

ATTEMPTS = [
    one for one in (*REACHING, *TAKING, *HIDING, *FORGING) if platform.machine() in one.machines
]
