"""Causes in logs of servers that cannot work together.

They concern the transfer of the KV cache, the shared key, and the discovery. The texts are those of
TensorRT-LLM, NIXL and UCX, as their users quoted them.
"""

from __future__ import annotations

SETTINGS = (
    (
        r"Python transceiver currently only supports the NIXL backend|requires the Python"
        r" transceiver runtime"
        r"|requires transceiver_runtime='PYTHON'",
        "its model needs NIXL for the transfer of the KV cache",
        "Set cache_transceiver: {backend: NIXL}.",
    ),
    (
        r"Invalid internal disaggregated (request|subagent affinity) authentication",
        "its servers do not share one key",
        "Start all of them in one launch, with auth_key: true.",
    ),
    (
        r"loopback-only",
        "its version lets servers register over HTTP on loopback only",
        "Give discovery: etcd://HOST:PORT, or leave discovery out.",
    ),
    (
        r"Invalid cluster storage URI",
        "its version does not accept this discovery address",
        "Give discovery: true, or leave it out; versions before the end of 2025 know no etcd.",
    ),
)
"""Errors that servers raise for their settings: they cannot go on, and the same request gets the
same refusal."""
LIBRARIES = (
    (
        (
            r"UCX CUDA support was not found|VRAM memory is detected as host by UCX|UCX"
            r" +ERROR[^\n]*no copy across memory"
        ),
        "UCX was started without CUDA, and cannot move the KV cache",
        (
            "Some clusters export UCX_TLS=tcp: unset it, or add CUDA transports to it,"
            " such as env: {UCX_TLS: 'cuda_copy,cuda_ipc,sm,self,tcp'}."
        ),
    ),
    (
        (
            r"libtensorrt_llm_nixl_wrapper|libnixl[\w.]*\.so[^\n]*(cannot open|undefined"
            r" symbol)|undefined symbol: \w*nixl"
        ),
        "its NIXL is missing, or is not the version that it was built for",
        "Set cache_transceiver: {backend: UCX}, or use an image in which the two match.",
    ),
    (
        r"Failed to deserialize data rail endpoints|Deserialization of tag dest_data_ep",
        "context and generation servers use NIXL with different underlying libraries",
        "Give both the same TRTLLM_NIXL_KVCACHE_BACKEND, or none.",
    ),
    (
        r"NIXL_ERR_\w+|registerMem: registration failed|status == NIXL_SUCCESS",
        "NIXL could not move the KV cache",
        (
            "Set cache_transceiver: {backend: UCX}; with NIXL, env:"
            " {UCX_TLS: ^cuda_ipc} avoids links between GPUs."
        ),
    ),
    (
        r"UCX +ERROR[^\n]*(no active messages transport|no remote registered memory access"
        r" transport"
        r"|Destination is unreachable|cuMemImportFromShareableHandle|cuIpcOpenMemHandle|cuda_ipc)",
        "UCX found no transport for the KV cache between its GPUs",
        (
            "Without NVLink, or in separate containers: env: {UCX_TLS: ^cuda_ipc}; with"
            " several NVLink domains: env: {UCX_CUDA_IPC_ENABLE_MNNVL: n}."
        ),
    ),
    (
        r"Etcd3Exception|Etcd3 error|No package metadata was found for etcd-sdk-python",
        "it cannot reach the etcd of its discovery, or has no client for it",
        "Check with etcdctl --endpoints HOST:PORT endpoint health whether it answers there.",
    ),
)
"""Messages of the libraries below. Servers that work print such lines as well, or retry."""
