"""`icarus-local sessions`: what was saved, shown, exported and removed."""

from __future__ import annotations

import json
import time

import click

from icarus_local.chat.figures import mib, printable
from icarus_local.chat.store import SavedSession, SavedTurn, Store
from icarus_local.cli.chat import history, sessions_folder


def run_list(as_json: bool) -> None:
    """Prints all conversations, the latest first."""
    store = Store(sessions_folder())
    for saved in store.sessions():
        state = store.state_file(saved.id)
        size = state.stat().st_size if state.exists() else 0
        if as_json:
            facts = {"id": saved.id, "updated": saved.updated, "base": saved.base, "title": saved.title}
            click.echo(json.dumps({**facts, "agents": saved.agents, "turns": saved.n_turns, "state_bytes": size}))
        else:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(saved.updated))
            kept = f"{mib(size)} of KV" if size else "no KV"
            click.echo(f"{saved.id}  {when}  {saved.n_turns:>3} turns  {kept:>16}  {printable(saved.title)}")


def run_show(session: str) -> None:
    """Prints what was said."""
    store = Store(sessions_folder())
    for text in history(store.turns(store.find(session).id)):
        click.echo(f"{printable(text)}\n")


def run_export(session: str, form: str) -> None:
    """Prints a conversation as Markdown or as a JSON object per turn."""
    store = Store(sessions_folder())
    saved = store.find(session)
    turns = store.turns(saved.id)
    click.echo(_markdown(saved, turns) if form == "md" else "\n".join(_json(turn) for turn in turns))


def _markdown(saved: SavedSession, turns: list[SavedTurn]) -> str:
    parts = [f"# {saved.title}", f"Conversation {saved.id} with {', '.join(saved.agents)} on {saved.base}."]
    for turn in turns:
        parts += [f"## {turn.speaker}", turn.text]
    return "\n\n".join(parts)


def _json(turn: SavedTurn) -> str:
    return json.dumps({"speaker": turn.speaker, "content": turn.text}, ensure_ascii=False)


def run_remove(sessions: tuple[str, ...], yes: bool) -> None:
    """Removes conversations after asking."""
    store = Store(sessions_folder())
    found = [store.find(session) for session in sessions]
    for saved in found:
        click.echo(f"{saved.id}  {saved.n_turns} turns  {printable(saved.title)}", err=True)
    if not yes:
        click.confirm(
            f"Remove {'this conversation' if len(found) == 1 else 'these conversations'}?", abort=True, err=True
        )
    for saved in found:
        store.delete(saved.id)
