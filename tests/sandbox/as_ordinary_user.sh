# The hostile programs once more, started by a user who is not root: sh tests/sandbox/as_ordinary_user.sh PYTHON
# That user needs a Python that it may run and the packages of the given one, wherever root's own folders are closed.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
packages=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
version=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
uid=$("$1" -c 'from serve_eval.sandbox.probe import _unused_uid; print(_unused_uid() + 1000)')
as_user() {
    setpriv --reuid "$uid" --regid "$uid" --clear-groups \
        env HOME=/nonexistent PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root:$packages" "$@"
}
for python in "$1" "/usr/bin/$version" "/usr/local/bin/$version"; do
    if as_user "$python" -c 'import msgspec, serve_eval' 2> /dev/null; then
        cd /
        as_user "$python" -m tests.sandbox.hostile
        exit
    fi
done
echo "not tried as an ordinary user: there is no $version with $packages and $root that others may read" >&2
[ -n "${SERVE_EVAL_ORDINARY_USER_OPTIONAL:-}" ]
