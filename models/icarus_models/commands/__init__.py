"""The commands of `icarus-train`, one a module; torch and the rest load when one runs."""
