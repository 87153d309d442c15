#!/bin/sh
# Install servers of other projects: build.sh FOLDER wheel|all. Existing parts are kept, so that an interrupted build
# resumes at the next call. `wheel` takes seconds and compiles nothing; `all` adds about ten minutes of CPU time and
# 1.4 GB. If pip's torch comes with CUDA, it is far larger; TORCH names another requirement.
set -eu
folder=$1 wanted=${2:-all} jobs=${PEERS_JOBS:-2} version=0.3.36
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
echo '*' > "$folder/.gitignore"
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"

once() { # once NAME COMMAND...: run the command unless it succeeded before
    name=$1
    shift
    [ -e "$folder/.$name" ] && return
    echo "peers: $name"
    "$@" > "$folder/$name.log" 2>&1 || { echo "peers: $name failed, see $folder/$name.log"; return 1; }
    touch "$folder/.$name"
}

# Chained with &&, because `set -e` has no effect in a function that `once` runs.
llama_cpp() {
    rm -rf "$folder/source" && mkdir -p "$folder/source" && cd "$folder/source" &&
        $pip download --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" &&
        tar xzf "llama_cpp_python-$version.tar.gz" &&
        # Built for all processors of this architecture, because the folder may be cached and used elsewhere.
        cmake -S "llama_cpp_python-$version/vendor/llama.cpp" -B "$folder/llama.cpp" -DCMAKE_BUILD_TYPE=Release \
            -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAMA_OPENSSL=OFF \
            -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF &&
        nice cmake --build "$folder/llama.cpp" --target llama-server -j "$jobs"
}

llama_cpp_python() { # uses the libraries built above, which halves the compilation
    CMAKE_ARGS=-DLLAMA_BUILD=OFF $pip install \
        "llama-cpp-python[server] @ file://$folder/source/llama_cpp_python-$version.tar.gz" &&
        LLAMA_CPP_LIB_PATH="$folder/llama.cpp/bin" "$folder/bin/python" -c 'import llama_cpp.server.app'
}

once wheel $pip install xllamacpp==2026.10.11549 gguf==0.19.0 numpy
[ "$wanted" = wheel ] && exit
failed=0
once transformers $pip install "${TORCH:-torch==2.13.0}" 'transformers[serving]==5.23.0' accelerate || failed=1
once llama_cpp llama_cpp && once llama_cpp_python llama_cpp_python || failed=1
exit $failed
