"""How good the agents are at their tasks, on GGUF files: items, systems, sandbox, scores, intervals, the table."""
