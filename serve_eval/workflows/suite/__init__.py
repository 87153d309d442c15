"""Many runs, one verdict: file -> runs (layers, matrix, match) -> execution (folder, shared_server) -> judgement."""
