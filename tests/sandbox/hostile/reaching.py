"""Try to reach beyond the network, files, processes and keyrings of a program."""

from tests.sandbox.hostile.run import Attempt

FAMILY = "EAFNOSUPPORT"
NETWORK = [
    Attempt(
        name="tcp",
        tries="to connect to a server on this machine",
        code=(
            "import socket\nattempt(lambda: socket.create_connection(('127.0.0.1', {tcp}),"
            " 2).sendall(b'x') or out('sent'))"
        ),
        by=FAMILY,
    ),
    Attempt(
        name="udp",
        tries="to send to another machine, by both versions of IP",
        code=(
            "import socket\nfor family, to in (socket.AF_INET, '192.0.2.1'), (socket.AF_INET6,"
            " '2001:db8::1'):\n    attempt(lambda: out(socket.socket(family,"
            " socket.SOCK_DGRAM).sendto(b'x', (to, 53))))"
        ),
        by=FAMILY,
    ),
    Attempt(
        name="names",
        tries="to ask a name server",
        code="import socket\nattempt(lambda: out(socket.getaddrinfo('example.org', 80)))",
        by="gaierror",
    ),
    *(
        Attempt(
            name=name,
            tries=f"to open a socket of {name}",
            code=f"import socket\nattempt(lambda: out(socket.socket({family}, {kind}, 0)))",
            by=FAMILY,
        )
        for name, family, kind in (
            ("netlink", 16, "socket.SOCK_RAW"),
            ("packets", 17, "socket.SOCK_RAW"),
            ("vsock", 40, "socket.SOCK_STREAM"),
            ("alg", 38, "socket.SOCK_SEQPACKET"),
        )
    ),
    Attempt(
        name="abstract",
        tries="to connect to an abstract socket of this machine, which tells a secret",
        code=(
            "import socket\ns = socket.socket(socket.AF_UNIX)\n"
            "attempt(lambda: s.connect({abstract!r}) or out(s.recv(100)))"
        ),
        by="ECONNREFUSED",
    ),
    Attempt(
        name="unix",
        tries="to connect to a socket in a folder of this machine, which tells a secret",
        code=(
            "import socket\ns = socket.socket(socket.AF_UNIX)\n"
            "attempt(lambda: s.connect({unix!r}) or out(s.recv(100)))"
        ),
        by="ENOENT",
    ),
    Attempt(
        name="io_uring",
        tries="to have the kernel work in its place",
        code="kernel('io_uring_setup', 8, ctypes.create_string_buffer(120))",
        by="ENOSYS",
    ),
]
FILES = [
    Attempt(
        name="secrets",
        tries="to read a secret in a folder, at home, in the environment of serve-eval",
        code=(
            "for place in ({file!r}, {home!r}, '/proc/{harness}/environ', '/etc/passwd'):\n"
            "    attempt(lambda: out(open(place).read()))"
        ),
        by="ENOENT",
    ),
    Attempt(
        name="roots",
        tries="the same through the roots and folders of all processes",
        code=(
            "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
            "    for way in 'root', 'cwd':\n"
            "        attempt(lambda: out(open(f'/proc/{{pid}}/{{way}}' + {file!r}).read()))"
        ),
        by="ENOENT|EACCES",
    ),
    Attempt(
        name="links",
        tries="the same through links and ..",
        code=(
            "os.symlink({file!r}, '/tmp/link')\nfor way in '/tmp/link', '/tmp' + '/..' * 9 +"
            " {file!r}:\n    attempt(lambda: out(open(way).read()))"
        ),
        by="ENOENT",
    ),
    Attempt(
        name="descriptors",
        tries="to use a descriptor that serve-eval had open, a folder of this machine",
        code=(
            "import stat\nfor fd in range(64):\n    try: mode = os.fstat(fd).st_mode\n    except"
            " OSError: continue\n    if stat.S_ISDIR(mode): out(os.listdir(fd))\n    if"
            " stat.S_ISREG(mode) and fd > 2: out(os.pread(fd, 9999, 0))\nstopped('none is there')"
        ),
        by="none is there",
    ),
    Attempt(
        name="handles",
        tries="to open files by their numbers, past all folders",
        code=(
            "handle = ctypes.create_string_buffer(b'\\x80' + bytes(199))\nmount ="
            " ctypes.create_string_buffer(8)\nkernel('name_to_handle_at', -100, b'/usr', handle,"
            " mount, 0)\nkernel('open_by_handle_at', 0, handle, 0)"
        ),
        by="EPERM",
    ),
    Attempt(
        name="writing",
        tries="to write where it may read",
        code=(
            "for folder in '/', '/usr', '/usr/bin', '/usr/lib', '/etc', '/dev', '/proc',"
            " '/proc/sys/kernel':\n    attempt(lambda: open(folder + '/written', 'w').write('x')"
            " and out(folder))"
        ),
        by="EROFS|EACCES|ENOENT|EPERM",
    ),
    Attempt(
        name="settings",
        tries="to change settings of the kernel",
        code=(
            "for name in 'sys/kernel/core_pattern', 'sys/vm/overcommit_memory', 'sysrq-trigger':\n"
            "    attempt(lambda: open('/proc/' + name, 'w').write('1') and out(name))"
        ),
        by="EROFS|EACCES|ENOENT|EPERM",
    ),
    Attempt(
        name="mounts",
        tries="to mount, remount, unmount and move its root",
        code=(
            "kernel('mount', b'proc', b'/tmp', b'proc', 0, None)\nkernel('mount', None, b'/usr',"
            " None, 32 | 4096, None)\nkernel('umount2', b'/tmp', 2)\nkernel('pivot_root', b'/tmp',"
            " b'/tmp')\nkernel('chroot', b'/tmp')"
        ),
        by="EPERM",
    ),
    Attempt(
        name="new-mounts",
        tries="the same by the newer calls",
        code=(
            "kernel('fsopen', b'tmpfs', 0)\nkernel('open_tree', -100, b'/', 1)\nkernel('fspick',"
            " -100, b'/usr', 0)"
        ),
        by="EPERM",
    ),
    Attempt(
        name="devices",
        tries="to make a disk's device and read it",
        code=(
            "import stat\nattempt(lambda: os.mknod('/tmp/disk', 0o666 | stat.S_IFBLK,"
            " os.makedev(259, 0))\n        or out(open('/tmp/disk',"
            " 'rb').read(16)))\nattempt(lambda: out(open('/dev/kmsg').read(9)))\nattempt(lambda:"
            " out(open('/dev/mem', 'rb').read(9)))"
        ),
        by="EPERM|ENOENT",
    ),
    Attempt(
        name="core",
        tries="to leave a core file",
        code=(
            "import resource as r\nattempt(lambda: r.setrlimit(r.RLIMIT_CORE, (1 << 20, 1 << 20))"
            " or out('raised'))\nif os.fork() == 0: os.abort()\n_, status = os.wait()\nif"
            " os.WCOREDUMP(status) or os.listdir('/tmp'): out('a core')"
        ),
        by="ValueError",
    ),
]
PROCESSES = [
    Attempt(
        name="signals",
        tries="to end a process of the same user outside",
        code=(
            "attempt(lambda: os.kill({decoy}, 9) or out('sent'))\n"
            "attempt(lambda: os.kill(-1, 9) or out('sent to all'))"
        ),
        by="ESRCH",
    ),
    Attempt(
        name="daemon",
        tries="to live on after its end",
        code=(
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n       "
            " os.execv('/bin/sleep', ['{mark}', '20'])\n    os._exit(0)\nos.wait()\nstopped('with"
            " the program')"
        ),
        by="with the program",
    ),
    Attempt(
        name="patience",
        tries="to live on after its time, deaf to signals",
        code=(
            "import signal\nfor number in range(1, 32):\n"
            "    if number not in (9, 17, 19): signal.signal(number, signal.SIG_IGN)\n"
            "if os.fork() == 0: os.execv('/bin/sleep', ['{mark}', '20'])\nwhile True: pass"
        ),
        by="timeout",
        wall_s=1.0,
    ),
    Attempt(
        name="fork-bomb",
        tries="to make many processes",
        code=(
            "made = 0\ndef fork():\n    global made\n    while made < 64:\n        if os.fork() =="
            " 0: os.execv('/bin/sleep', ['{mark}', '20'])\n        made += 1\nattempt(fork)\nif"
            " made > 16: out(made)"
        ),
        by="EAGAIN",
    ),
    Attempt(
        name="threads",
        tries="to make many threads",
        code=(
            "import threading\nmade = 0\ndef start():\n    global made\n    while made < 64:\n     "
            "   threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n        made"
            " += 1\nattempt(start)\nif made > 16: out(made)"
        ),
        by="RuntimeError",
    ),
    Attempt(
        name="ptrace",
        tries="to trace its checker",
        code="kernel('ptrace', 16, 1, 0, 0)\nkernel('ptrace', 0x4206, os.getppid(), 0, 0)",
        by="EPERM",
    ),
    Attempt(
        name="memory-of-others",
        tries="to read and write the memory of its checker",
        code=(
            "kernel('process_vm_writev', 1, None, 0, None, 0, 0)\n"
            "kernel('process_vm_readv', 1, None, 0, None, 0, 0)\n"
            "for mode in 'rb', 'r+b':\n    attempt(lambda: out(open('/proc/1/mem', mode, 0)))\n"
            "attempt(lambda: out(open('/proc/1/maps').read()))"
        ),
        by="EROFS|EPERM|EACCES",
    ),
    Attempt(
        name="all-of-its-checker",
        tries="to look at whatever the kernel tells of its checker",
        code=(
            "places = ('environ', 'maps', 'auxv', 'syscall', 'stack', 'io', 'fd', 'fdinfo',"
            " 'map_files', 'root',\n    'cwd', 'exe', 'ns/net', 'pagemap', 'smaps_rollup',"
            " 'personality', 'task/1/mem', 'oom_score_adj', 'comm')\ndef look(place):\n    if place"
            " in ('oom_score_adj', 'comm'): return open(place, 'w').write('0')\n    if place =="
            " 'fd': return [open(f'fd/{{number}}') for number in os.listdir(place)]\n    return"
            " os.listdir(place) if os.path.isdir(place) else open(place,"
            " 'rb').read(9)\nos.chdir('/proc/1')\nfor place in places: attempt(lambda: out(place,"
            " look(place)))"
        ),
        by="EACCES|EPERM|EROFS",
    ),
    Attempt(
        name="descriptors-of-others",
        tries="to take the descriptors of its checker, in which its verdict and the checks are",
        code=(
            "for fd in range(3, 64):\n    for mode in os.O_RDONLY, os.O_WRONLY:\n       "
            " attempt(lambda: out(fd, os.open(f'/proc/1/fd/{{fd}}', mode |"
            " os.O_NONBLOCK)))\nkernel('pidfd_getfd', os.pidfd_open(1), 3, 0)"
        ),
        by="EPERM|EACCES|ENOENT",
    ),
    Attempt(
        name="limits-of-others",
        tries="to change the limits of its checker",
        code="kernel('prlimit64', 1, 7, (ctypes.c_ulong * 2)(0, 0), None)",
        by="EPERM",
    ),
    Attempt(
        name="terminal",
        tries="to type into a terminal",
        code="for fd in range(3): kernel('ioctl', fd, 0x5412, b'x')",
        by="EPERM",
    ),
]
KEYRINGS = [
    Attempt(
        name="session-keys",
        tries="to read the keys of the session of serve-eval",
        code=(
            "attempt(lambda: print(open('/proc/keys').read()))\nif kernel('keyctl', 10, -3,"
            " b'user', {key!r}, 0) >= 0: out('found')\nkernel('keyctl', 6, -3, None, 0)"
        ),
        by="EPERM|EACCES",
    ),
    Attempt(
        name="planted-keys",
        tries="to leave a key in the session and the user's keyring",
        code="for ring in -3, -4: kernel('add_key', b'user', {planted!r}, b'x', 1, ring)",
        by="EPERM",
    ),
    Attempt(
        name="asked-keys",
        tries="to have a key made by the machine",
        code="kernel('request_key', b'user', b'asked', b'x', -3)\nkernel('keyctl', 1, b'joined')",
        by="EPERM",
    ),
]
REACHING = [*NETWORK, *FILES, *PROCESSES, *KEYRINGS]
