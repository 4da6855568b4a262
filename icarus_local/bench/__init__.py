"""Measurements of the engine beside llama.cpp, through the same llama-cpp-python and the same file."""
