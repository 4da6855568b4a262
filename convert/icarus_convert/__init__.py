"""Hugging Face and PEFT to GGUF: the command `icarus-convert`."""
