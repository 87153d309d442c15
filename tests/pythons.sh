#!/bin/sh
# Run the fast tests on each Python of the classifiers, in separate environments: make test-pythons. Interpreters come from
# PATH or pyenv; missing ones are reported. Fails if tests fail or if no interpreter is found.
set -u
versions=${PYTHONS:-$(sed -n 's,.*Python :: \(3\.[0-9]*\)".*,\1,p' pyproject.toml)}
said= ran=no failed=no
for version in $versions; do
  python=$(sh tests/find_python.sh "$version")
  if [ -z "$python" ]; then
    said="$said\nPython $version: not on this machine"
    continue
  fi
  ran=yes
  if ${MAKE:-make} --no-print-directory "PYTHON=$python" "VENV=.venv-$version" test; then
    said="$said\n$("$python" --version): passed"
  else
    failed=yes
    said="$said\n$("$python" --version): failed"
  fi
done
printf "$said\n"
[ "$ran $failed" = "yes no" ]
