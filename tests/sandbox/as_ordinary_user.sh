# Run the hostile programs again as a user who is not root: sh tests/sandbox/as_ordinary_user.sh PYTHON
# That user needs a Python that others may run. Its imports are copied to where others may read them.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
packages=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
version=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
uid=$("$1" -c 'from serve_eval.sandbox.probe import _find_unused_uid; print(_find_unused_uid() + 1000)')
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R "$root/serve_eval" "$root/launchers" "$root/tests" "$packages/msgspec" "$copy"
chmod -R a+rX "$copy"
as_user() {
    setpriv --reuid "$uid" --regid "$uid" --clear-groups \
        env HOME=/nonexistent PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$copy" "$@"
}
cd /
for python in "$1" "/usr/bin/$version" "/usr/local/bin/$version"; do
    if as_user "$python" -c 'import msgspec, serve_eval' 2> /dev/null; then
        as_user "$python" -m tests.sandbox.hostile
        exit
    fi
done
echo "not tried as an ordinary user: there is no $version that others may run" >&2
[ -n "${SERVE_EVAL_ORDINARY_USER_OPTIONAL:-}" ]
