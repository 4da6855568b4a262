"""Writes docs/commands.md from the commands' own --help."""

from __future__ import annotations

from pathlib import Path

import click

_WIDTH = 100


def generated() -> str:
    """The reference of all commands, as Markdown."""
    from icarus_convert.cli import main as icarus_convert
    from icarus_local.cli.main import main as icarus_local
    from icarus_models.cli import main as icarus_train

    parts = ["# Commands\n\nThis page is what `--help` prints; `python docs/generate_commands.py` writes it.\n"]
    for command in (icarus_local, icarus_convert, icarus_train):
        parts += _sections(command, command.name or "", None)
    return "\n".join(parts)


def _sections(command: click.Command, name: str, parent: click.Context | None) -> list[str]:
    settings = {**command.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    path = context.command_path
    parts = [f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"]
    if isinstance(command, click.Group):
        for child in sorted(command.commands):
            parts += _sections(command.commands[child], child, context)
    return parts


if __name__ == "__main__":
    Path(__file__).with_name("commands.md").write_text(generated(), "utf-8")
