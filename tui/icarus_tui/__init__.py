"""The full-screen conversation of `icarus-local chat`, in Textual."""
