"""Try to hide memory from the checks of processes, and in files that the checker reads."""

from __future__ import annotations

from tests.sandbox.hostile.attempt import PRELUDE, Attempt
from tests.sandbox.hostile.forging import ASSERTION, WORD

_SHARED = """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 2, *[ctypes.c_int] * 2, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def keep(flags, fd, size=128 << 20):
    for _ in range(10):
        place = libc.mmap(None, size, 3, flags | 0x8000, fd, 0)
        if place == 2**64 - 1: return stopped('mmap', errno.errorcode[ctypes.get_errno()])
        libc.munmap(place + 4096, size - 4096)
    time.sleep(1)
    out('1280 MiB behind ten pages')
"""
_LOCAL = """
import socket
held = 0
def fill(one, *where):
    global held
    one.setblocking(False)
    try:
        for _ in range(20): held += one.send(bytes(65536)) if not where else one.sendto(bytes(150000), *where)
    except BlockingIOError: pass
    one.close()
"""  # noqa: E501
_SOURCE = """
job = open('/proc/1/cmdline').read().split(chr(0))[-4]
for name in 'checks', '<checks>', 'serve_eval.sandbox._checker', 'serve_eval.sandbox._talk':
    os.symlink(f'/proc/self/fd/{{job}}', f'/tmp/{{name}}')
def f(x):
    import re
    said = os.pread(2, 1 << 20, 0).decode(errors='replace')
    return (re.findall('[0-9a-f]{{24}}', said) or [0])[0]
"""
"""Code that makes the length a valid UTF-8 prefix: the checker shows the source of a warning as
UTF-8.
"""
HIDING = [
    Attempt(
        name="shared-pages",
        tries="to keep shared memory by one page of it, of which no process tells the rest",
        code=_SHARED + "keep(0x21, -1)",
        by="EPERM",
    ),
    Attempt(
        name="shared-zeros",
        tries="the same by /dev/zero",
        code=_SHARED + "attempt(lambda: keep(0x01, os.open('/dev/zero', os.O_RDWR)))",
        by="ENOENT",
    ),
    Attempt(
        name="first-thread-over",
        tries="to take 1200 MiB in processes whose first thread is over",
        code=(
            "import threading\ndef hold():\n    time.sleep(0.3)\n    held = bytes([1]) * (300 <<"
            " 20)\n    time.sleep(3)\n    out('held')\nfor _ in range(4):\n    if os.fork() == 0:\n"
            "        threading.Thread(target=hold).start()\n        libc.syscall(ctypes.c_long(60"
            " if os.uname().machine == 'x86_64' else 93))\ntime.sleep(5)"
        ),
        by="killed.*MiB together",
    ),
    Attempt(
        name="backlog",
        tries="to take 900 MiB in connections that nobody accepts",
        code=_LOCAL
        + "def go():\n    server = socket.socket(socket.AF_UNIX)\n    server.bind('/tmp/s')\n   "
        " server.listen(4096)\n    while held < 900 << 20:\n        one ="
        " socket.socket(socket.AF_UNIX)\n        one.settimeout(1)\n       "
        " one.connect('/tmp/s')\n        fill(one)\n    out(held >> 20)\nattempt(go)",
        by="EPERM",
    ),
    Attempt(
        name="letters",
        tries="to take memory in letters to sockets that nobody reads",
        code=_LOCAL + "def go():\n    for n in range(50):\n"
        "        keep = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "        keep.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)\n        keep.bind('')\n"
        "        kept.append(keep)\n        for _ in range(12):\n"
        "            fill(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), keep.getsockname())\n"
        "    out(held >> 20)\nkept = []\nattempt(go)",
        by="EPERM",
    ),
    Attempt(
        name="attributes",
        tries="to take 256 MiB in attributes of its standard streams, which lie in no /tmp",
        code=(
            "def go(fd):\n    for n in range(2048): os.setxattr(fd, f'user.{{n}}', bytes(65536))\n "
            "   out(fd)\nfor fd in 0, 1: attempt(go, fd)"
        ),
        by="EPERM",
    ),
    Attempt(
        name="watches",
        tries="to have the kernel keep what happens to a file, many times over",
        code=(
            "for flags in 0, 0o4000:\n    fd = libc.inotify_init1(flags)\n"
            "    out(fd) if fd >= 0 else stopped(errno.errorcode[ctypes.get_errno()])\n"
            "kernel('landlock_create_ruleset', (ctypes.c_uint64 * 1)(0x1fff), 8, 0)"
        ),
        by="EPERM",
    ),
    Attempt(
        name="source-of-checks",
        tries="to have the checker show its job as the source of a warning",
        code=_SOURCE + "#" * (-len(PRELUDE + _SOURCE.format()) % 256),
        checks=f"word = {WORD!r}\n" * 120 + f"assert f(1) is not 4\nassert f(1) == {WORD!r}",
        by=ASSERTION,
    ),
    Attempt(
        name="last-to-go",
        tries="to have the kernel end others first where memory runs out",
        code=(
            "attempt(lambda: open('/proc/self/oom_score_adj', 'w').write('0') and None)\nif"
            " int(open('/proc/self/oom_score_adj').read()) < 1000:"
            " out(open('/proc/self/oom_score_adj').read())"
        ),
        by="EROFS",
    ),
]
