"""The errors that are meant for people: each says what is wrong, where, and what to do."""


class IcarusError(Exception):
    """Root of every error that a command shows as one line.

    Args:
        what: what is wrong and where (file, key, tensor, argument).
        hint: what to do about it; empty when `what` says it already.

    Attributes:
        exit_code: a command's, where the error ends it.
    """

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what}. {hint}" if hint else what)
        self.what = what
        self.hint = hint


class LibraryError(IcarusError):
    """The native libraries are missing, of an untested version, or failed."""


class ModelFileError(IcarusError):
    """A base or adapter file cannot be used as it is."""


class AdapterError(ModelFileError):
    """An adapter does not fit the base, or may not stand on a shared cache."""


class ContextFullError(IcarusError):
    """More tokens were asked for than the KV cache holds."""


class RequestError(IcarusError):
    """A call asks for something that does not exist: token, sequence, adapter, agent."""


class TemplateError(IcarusError):
    """A chat template is broken or cannot serve this conversation."""


class StateError(IcarusError):
    """A saved KV state is damaged, or of another base, type or version."""


class CancelledError(IcarusError):
    """The step was stopped by a call to `cancel`; the cache holds the last whole token."""


class EngineDiedError(IcarusError):
    """The engine's process ended unexpectedly, by an abort in native code for one."""
