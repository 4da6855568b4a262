"""icarus-local: several specialist agents over one shared KV cache, on one machine."""

__version__ = "0.1.0"
