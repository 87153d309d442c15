#!/bin/sh
# Print the interpreter of a Python version, such as 3.12, from PATH or pyenv. Fails if there is none.
for one in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
  if "$one" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2> /dev/null; then
    command -v "$one"
    exit
  fi
done
exit 1
