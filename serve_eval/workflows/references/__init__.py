"""Make references: register runs, import those of TensorRT-LLM and BioChatter."""
