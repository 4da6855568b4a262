"""`icarus-local sessions`: what was saved, shown, looked through, named, exported and removed."""

from __future__ import annotations

import json
import time

import click

from icarus_local.chat.figures import mib, printable
from icarus_local.chat.keeper import MAX_STATE_BYTES
from icarus_local.chat.store import SavedSession, Store
from icarus_local.chat.transcripts import Form, exported, history
from icarus_local.cli.opening import sessions_folder


def run_list(as_json: bool) -> None:
    """Prints all conversations, the latest first, and what their KV states take together."""
    store = Store(sessions_folder())
    found = store.sessions()
    sizes = {saved.id: _size(store, saved) for saved in found}
    # As near the limit as this: one more state like the largest has no room.
    largest = max(sizes.values(), default=0)
    going = {saved.id for saved in store.next_to_go(MAX_STATE_BYTES, largest)}
    for saved in found:
        size = sizes[saved.id]
        if as_json:
            facts = {"id": saved.id, "updated": saved.updated, "base": saved.base, "title": saved.title}
            click.echo(json.dumps({**facts, "agents": saved.agents, "turns": saved.n_turns, "state_bytes": size}))
        else:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(saved.updated))
            kept = f"{mib(size)} of KV" if size else "no KV"
            mark = "*" if saved.id in going else " "
            click.echo(f"{saved.id}  {when}  {saved.n_turns:>3} turns  {kept:>16} {mark} {printable(saved.title)}")
    if found and not as_json:
        taken, limit = (f"{n_bytes / 2**30:.1f}" for n_bytes in (store.state_bytes, MAX_STATE_BYTES))
        text = f"saved KV states take {taken} of {limit} GiB"
        if going:
            text += f"; another of {mib(largest)} would remove those marked * (their transcripts stay)"
        click.echo(text)


def _size(store: Store, saved: SavedSession) -> int:
    state = store.state_file(saved.id)
    return state.stat().st_size if state.exists() else 0


def run_show(session: str) -> None:
    """Prints what was said."""
    store = Store(sessions_folder())
    for said in history(store.turns(store.find(session).id)):
        click.echo(f"{printable(said.shown)}\n")


def run_export(session: str, form: Form) -> None:
    """Prints a conversation as Markdown or as a JSON object per turn."""
    store = Store(sessions_folder())
    saved = store.find(session)
    click.echo(exported(form, saved, store.turns(saved.id)))


def run_search(text: str, as_json: bool) -> None:
    """Prints the turns and titles of all conversations that hold a text."""
    for found in Store(sessions_folder()).search(text):
        saved = found.session
        if as_json:
            facts = {"id": saved.id, "title": saved.title, "turn": found.turn, "speaker": found.speaker}
            click.echo(json.dumps({**facts, "excerpt": found.excerpt}))
        else:
            click.echo(f"{saved.id}  {found.speaker or 'title'}: {found.excerpt}")


def run_rename(session: str, title: str) -> None:
    """Gives a conversation a title, or the one of its first question."""
    store = Store(sessions_folder())
    store.rename(store.find(session).id, title)


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
