"""Training data of the shipped agents: simple tasks, the standard library, mutations, and the base's own answers."""
