"""Try to take more than a program may have, and to hide from the checks."""

from tests.sandbox.hostile.forging import ASSERTION, WORD
from tests.sandbox.hostile.run import PRELUDE, Attempt

MORE = "1200"
"""Memory in MiB, more than all processes of a program may have together."""
MEMORY = [
    Attempt(
        name="allocation",
        tries="to take 1200 MiB at once",
        code=f"attempt(lambda: out(len(bytearray({MORE} << 20))))",
        by="MemoryError",
    ),
    Attempt(
        name="family",
        tries="to take 1200 MiB in four processes",
        code=(
            "import signal\nfor _ in range(3):\n    if os.fork() == 0: break\n"
            "held = [bytes([1]) * (300 << 20)]\ntime.sleep(5)\nout('held')"
        ),
        by="killed.*MiB together",
    ),
    Attempt(
        name="memory-files",
        tries="to take 1200 MiB in files in memory",
        code=(
            "made = [fd for fd in (kernel('memfd_create', b'x', 0) for _ in range(50)) if fd >="
            " 0]\nfor fd in made:\n    for _ in range(15): os.write(fd, bytes(1 <<"
            " 20))\nkernel('memfd_secret', 0)"
        ),
        by="EPERM|ENOSYS",
    ),
    Attempt(
        name="shared-memory",
        tries="to take shared memory, queues and semaphores of System V and POSIX",
        code=(
            "kernel('shmget', 0, 900 << 20, 0o1600)\nkernel('msgget', 0, 0o1600)\nkernel('semget',"
            " 0, 250, 0o1600)\nkernel('mq_open', b'q', 0o102, 0o600, None)\nattempt(lambda:"
            " open('/dev/shm/x', 'w') and out('/dev/shm'))"
        ),
        by="EPERM|ENOENT|EROFS|EACCES",
    ),
    Attempt(
        name="scratch",
        tries="to write 64 MiB into its folder",
        code=(
            "written = 0\ndef fill():\n    global written\n    for n in range(8):\n        with"
            " open(f'/tmp/{{n}}', 'wb', buffering=0) as file:\n            for _ in range(8):"
            " written += file.write(bytes(1 << 20))\n    out(written)\nattempt(fill)"
        ),
        by="ENOSPC",
    ),
    Attempt(
        name="files",
        tries="to make 300,000 files",
        code=(
            "made = 0\ndef fill():\n    global made\n    os.chdir('/tmp')\n    while made <"
            " 300000:\n        os.close(os.open(str(made), os.O_CREAT))\n        made += 1\n   "
            " out(made)\nattempt(fill)"
        ),
        by="ENOSPC|killed.*files",
        wall_s=30.0,
    ),
    Attempt(
        name="long-file",
        tries="to make a file of a terabyte",
        code=(
            "attempt(lambda: out(os.truncate(os.open('/tmp/x', os.O_CREAT | os.O_RDWR), 1 << 40)))"
        ),
        by="EFBIG",
    ),
    Attempt(
        name="output",
        tries="to write 64 MiB to its output",
        code=(
            "said = []\nfor stream in 1, 2:\n    try:\n"
            "        for _ in range(1024): os.write(stream, bytes(65536))\n"
            "        said.append((out, 'all of it'))\n"
            "    except OSError as error: said.append((stopped, errno.errorcode[error.errno]))\n"
            "    os.ftruncate(stream, 0), os.lseek(stream, 0, 0)\nfor say, what in said: say(what)"
        ),
        by="EFBIG",
    ),
    Attempt(
        name="sockets",
        tries="to take 256 MiB in the buffers of sockets",
        code=(
            "import socket\nheld, kept = 0, []\ndef fill():\n    global held\n    while held < 256"
            " << 20:\n        pair = socket.socketpair()\n        kept.append(pair)\n        for"
            " one in pair:\n            one.setblocking(False)\n            try:\n               "
            " while True: held += one.send(bytes(65536))\n            except BlockingIOError:"
            " pass\n    out(held)\nattempt(fill)"
        ),
        by="EMFILE",
    ),
    Attempt(
        name="time",
        tries="to never end",
        code="while True: pass",
        by="timeout",
        wall_s=1.0,
    ),
]
KERNEL = [
    Attempt(
        name="32-bit",
        tries="to call the kernel by the numbers of a 32-bit machine",
        code=(
            "import mmap\npage = mmap.mmap(-1, 4096, flags=0x22, prot=7)\n"
            "page.write(bytes.fromhex('b814000000cd80c3'))  # getpid\n"
            "where = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
            "out('pid', ctypes.CFUNCTYPE(ctypes.c_int)(where)())"
        ),
        by="killed 159",
        machines=("x86_64",),
    ),
    Attempt(
        name="x32",
        tries="to call the kernel by the numbers of x32",
        code=(
            "result = libc.syscall(ctypes.c_long(0x40000000 | 39))\n"
            "out(result) if result >= 0 else stopped(errno.errorcode[ctypes.get_errno()])"
        ),
        by="killed 159",
        machines=("x86_64",),
    ),
    Attempt(
        name="looser-filter",
        tries="to take the filter off, or to put an open one over it",
        code=(
            "line = (ctypes.c_ubyte * 8)(6, 0, 0, 0, 0, 0, 255, 127)\nclass P(ctypes.Structure):"
            " _fields_ = [('n', ctypes.c_ushort), ('lines', ctypes.c_void_p)]\nlibc.prctl(22, 0, 0,"
            " 0, 0)\nlibc.prctl(22, 2, ctypes.byref(P(1, ctypes.addressof(line))), 0,"
            " 0)\nkernel('add_key', b'user', {planted!r}, b'x', 1, -3)\nkernel('bpf', 0, None, 0)"
        ),
        by="EPERM",
    ),
    Attempt(
        name="another-program",
        tries="to be rid of the filter in another program",
        code=(
            "import subprocess\nprint(subprocess.run([sys.executable, '-I', '-S', '-c', f\"import"
            " ctypes, os; l = ctypes.CDLL(None, use_errno=True)\\nr ="
            " l.syscall({{CALLS['io_uring_setup']}}, 8,"
            " ctypes.create_string_buffer(120))\\nprint('OUT:' if r >= 0 else 'stopped:',"
            ' ctypes.get_errno())"], capture_output=True, text=True).stdout)'
        ),
        by="38",
    ),
    Attempt(
        name="namespaces",
        tries="to make namespaces of its own, in which it has every right",
        code=(
            "kernel('unshare', 0x10000000)\nkernel('unshare', 0x20000)\n"
            "kernel('clone', 0x10000000 | 17, 0, 0, 0, 0)\n"
            "kernel('clone', 0x40000000 | 17, 0, 0, 0, 0)"
        ),
        by="EPERM",
    ),
    Attempt(
        name="clone3",
        tries="the same by a call whose flags no filter sees",
        code="kernel('clone3', (ctypes.c_ulonglong * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)",
        by="ENOSYS",
    ),
    Attempt(
        name="setns",
        tries="to enter the namespaces of another process",
        code=(
            "for name in os.listdir('/proc/self/ns'):\n    attempt(lambda: kernel('setns',"
            " os.open(f'/proc/1/ns/{{name}}', os.O_RDONLY), 0))\nkernel('setns',"
            " os.pidfd_open(os.getpid()), 0x20000)"
        ),
        by="EPERM|EACCES",
    ),
    Attempt(
        name="capabilities",
        tries="to use or get rights of root",
        code=(
            "open('/tmp/x', 'w').close()\nattempt(lambda: out(os.chown('/tmp/x', 1,"
            " 1)))\nattempt(lambda: out(os.setgroups([])))\nattempt(lambda:"
            " out(os.nice(-5)))\nimport subprocess, shutil\nshutil.copy('/usr/bin/id',"
            " '/tmp/id')\nos.chmod('/tmp/id', 0o6755)\nrights = [line for line in"
            " open('/proc/self/status') if line.startswith('Cap') and int(line[7:], 16)]\nif"
            " rights: out(rights)"
        ),
        by="EPERM|EINVAL|EACCES",
    ),
    *(
        Attempt(name=name, tries=f"to use {what}", code=f"kernel({name!r}, {args})", by="EPERM")
        for name, what, args in (
            (
                "bpf",
                "programs in the kernel",
                "0, ctypes.create_string_buffer(b'\\x02' + bytes(71)), 72",
            ),
            (
                "perf_event_open",
                "the kernel's counters",
                "ctypes.create_string_buffer(b'\\x01' + bytes(127)), 0, -1, -1, 0",
            ),
            ("userfaultfd", "page faults", "1"),
            (
                "io_setup",
                "the older kind of asynchronous files",
                "8, ctypes.create_string_buffer(8)",
            ),
            ("personality", "another layout of memory", "0x0040000"),
            ("fanotify_init", "the watching of files", "0x200, 0"),
        )
    ),
    Attempt(
        name="machine",
        tries="to restart the machine, load modules, name it, set its clock",
        code=(
            "kernel('init_module', None, 0, None)\nkernel('finit_module', -1, None, 0)\n"
            "kernel('sethostname', b'x', 1)\n"
            "kernel('clock_settime', 0, None)\nkernel('swapon', b'/tmp/x', 0)\n"
            "kernel('kexec_file_load', -1, -1, 0, None, 0)\n"
            "kernel('syslog', 3, ctypes.create_string_buffer(9), 9)"
        ),
        by="EPERM",
    ),
    Attempt(
        name="tomorrow",
        tries="a call that is newer than the filter",
        code="CALLS['new'] = 457\nkernel('new', 0, 0, 0, 0)",
        by="ENOSYS",
    ),
]
TAKING = [*MEMORY, *KERNEL]


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
for name in 'checks', '<checks>', 'serve_eval.sandbox._inside', 'serve_eval.sandbox._talk':
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
