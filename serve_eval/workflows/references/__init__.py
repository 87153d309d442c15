"""Make references: register runs, import those of TensorRT-LLM and BioChatter."""

__all__ = [
    "import_biochatter",
    "import_trtllm",
    "register",
    "trtllm_oddities",
    "trtllm_rows",
    "yaml_edit",
]
