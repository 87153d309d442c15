"""Make references: register your own runs, or import those of TensorRT-LLM and BioChatter."""

__all__ = [
    "entries",
    "import_biochatter",
    "import_trtllm",
    "register",
    "take",
    "trtllm_rows",
]
