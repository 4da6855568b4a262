"""The tables of docs/accuracy.md, from the scores and the run files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from icarus_local.errors import IcarusError
from icarus_models.evaluation.evaluate import read_scores
from icarus_models.evaluation.items import SCORE
from icarus_models.evaluation.statistics import Interval, interval, paired
from icarus_models.evaluation.tasks import TASKS, specialist_of
from icarus_models.run_files import ADAPTER, RUN_FILE, read_json, write_text
from icarus_models.run_record import apart
from icarus_models.specialists import NAMES

BEGIN, END = "<!-- results: written by `icarus-train eval --table` -->", "<!-- end of results -->"
_MARGIN = 3.0  # points that ICaRus may be below an ordinary LoRA
_SHARE = 0.95  # of the ordinary one's gain in held-out loss that is to be kept
_NONE = "–"
# Besides the items: what an answer depends on, whoever gives it.
_CONDITIONS = ("base_sha256", "llama_cpp", "icarus_local", "version")

# Scores of the items by task, system and specialist ("" for the base).
Cells = Mapping[tuple[str, str, str], dict[str, Any]]


def write_tables(page: Path, folder: Path, runs: Path) -> None:
    """Puts the tables between the two marks of a page, all else as it is.

    Args:
        page: Markdown. folder: of the scores. runs: of the runs, NAME-METHOD each.

    Raises:
        IcarusError: the page has no marks, or nothing was scored.
    """
    cells = _comparable(read_scores(folder))
    if not cells:
        raise IcarusError(f"{folder} holds no scores", "Evaluate first: icarus-train eval --task … --system …")
    before, after = read_page(page)
    write_text(page, f"{before}{BEGIN}\n\n{tables(cells, runs)}\n{END}{after}")


def read_page(page: Path) -> tuple[str, str]:
    """What stands before and after the tables of a page.

    Raises:
        IcarusError: it cannot be read, or has no marks.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise IcarusError(f"{page} cannot be read: {error.strerror}", "Give another with --page") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise IcarusError(f"{page} has no place for the tables", f"Put the lines {BEGIN} and {END} where they belong")
    return before, after


def _comparable(scored: Sequence[dict[str, Any]]) -> Cells:
    """The cells of each task that are as the one scored last: the same items, base and programs."""
    last = {of["task"]: _asked(of) for of in scored}
    return {(of["task"], of["system"], of["agent"]): of for of in scored if _asked(of) == last[of["task"]]}


def _asked(of: Mapping[str, Any]) -> tuple[Any, ...]:
    return of["items_sha256"], *(of.get(key) for key in _CONDITIONS)


def tables(cells: Cells, runs: Path) -> str:
    """All tables, as Markdown."""
    parts = [_conditions(cells), _own(cells), _every(cells), _details(cells), _losses(runs)]
    return "\n".join(part for part in parts if part)


def _conditions(cells: Cells) -> str:
    """The base and the programs that answered, and which tasks where these are not the same for all."""
    tasks: dict[str, list[str]] = {}
    for (task, _, _), of in cells.items():
        conditions = (
            f"{of.get('base', 'base')} (SHA-256 {str(of.get('base_sha256'))[:12]}…), icarus-local "
            f"{of.get('icarus_local')}, llama-cpp-python {of.get('llama_cpp')}"
        )
        named = tasks.setdefault(conditions, [])
        if task not in named:
            named.append(task)
    if len(tasks) == 1:
        return f"Answered by {next(iter(tasks))}.\n"
    return "\n".join(f"{', '.join(some)}: answered by {conditions}.\n" for conditions, some in tasks.items())


def _rows(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines]) + "\n" if lines else ""


def _own(cells: Cells) -> str:
    """Every task by its own specialist."""

    def rows() -> Iterator[Sequence[str]]:
        for task in TASKS:
            own = specialist_of(task)
            found = [cells.get((task, *who)) for who in (("base", ""), ("lora", own), ("icarus", own))]
            if not any(found):
                continue
            n = max(len(of["items"]) for of in found if of)
            yield (
                task,
                str(n),
                *map(_percent, found),
                *_difference(found[2], found[1]),
                *_difference(found[2], found[0]),
            )

    head = ("task", "items", "base", "ordinary LoRA", "ICaRus", "ICaRus − ordinary", "ICaRus − base")
    text = _rows(head, rows())
    return text and (
        "Percent of the items that are right, 95 % intervals in brackets (bootstrap over the items; of differences\n"
        f"paired). ✓ where the lower bound of ICaRus − ordinary is above −{_MARGIN:g} points, that of ICaRus − base "
        f"above 0.\n\n{text}"
    )


def _difference(a: dict[str, Any] | None, b: dict[str, Any] | None) -> tuple[str]:
    if a is None or b is None:
        return (_NONE,)
    margin = -_MARGIN if b["system"] == "lora" else 0.0
    found = difference(a, b)
    return (f"{_points(found, sign=True)} {'✓' if 100 * found.low > margin else '✗'}",)


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> Interval:
    """How much better `a` is than `b` on the same items."""
    return paired([one[SCORE] for one in a["items"]], [one[SCORE] for one in b["items"]])


def _every(cells: Cells) -> str:
    """Every specialist on every task."""
    speakers = [("base", "")] + [(system, name) for system in ("lora", "icarus") for name in NAMES]
    tasks = [task for task in TASKS if any(key[0] == task for key in cells)]

    def rows() -> Iterator[Sequence[str]]:
        for system, name in speakers:
            found = [cells.get((task, system, name)) for task in tasks]
            if any(found):
                label = {"base": "base", "lora": f"ordinary {name}", "icarus": f"ICaRus {name}"}[system]
                own = [specialist_of(task) == name for task in tasks]
                shown = (_NONE if of is None else f"{_mean(of, SCORE):.1f}" for of in found)
                yield (label, *(f"**{text}**" if bold else text for text, bold in zip(shown, own, strict=True)))

    text = _rows(("who answers", *tasks), rows())
    return text and f"Every specialist on every task, percent right, its own task bold:\n\n{text}"


def _details(cells: Cells) -> str:
    """What a score is made of: parts that only some items have."""

    def rows() -> Iterator[tuple[str, ...]]:
        for (task, system, name), of in cells.items():
            if name not in ("", specialist_of(task)):
                continue
            for part in sorted({key for one in of["items"] for key in one} - {"id", SCORE}):
                n = sum(part in one for one in of["items"])
                yield (task, f"{system} {name}".strip(), part, str(n), f"{_mean(of, part):.1f}")

    text = _rows(("task", "who answers", "part", "items", "%"), iter(sorted(rows())))
    return text and f"Parts of the scores:\n\n{text}"


def _losses(runs: Path) -> str:
    """Held-out losses, as the runs themselves measured them."""

    def rows() -> Iterator[Sequence[str]]:
        for name in NAMES:
            found = {method: _run(runs / f"{name}-{method}") for method in ("lora", "icarus")}
            measured = {method: run for method, run in found.items() if run}
            losses = {method: run["losses"] for method, run in measured.items()}
            if not losses:
                continue
            base = next(iter(losses.values()))["heldout_base"]
            shown = [f"{losses[method]['heldout_trained']:.3f}" if method in losses else _NONE for method in found]
            share = _NONE
            if len(losses) == 2 and (differ := apart(measured["lora"], measured["icarus"])):
                share = f"{_NONE} (not the same {', '.join(differ)})"
            elif len(losses) == 2:
                gains = {method: base - of["heldout_trained"] for method, of in losses.items()}
                share = _kept(gains["icarus"], gains["lora"])
            yield (name, f"{base:.3f}", *shown, share)

    text = _rows(("specialist", "base", "ordinary LoRA", "ICaRus", "ICaRus's share of the gain"), rows())
    return text and f"Held-out loss, nats a supervised token (✓ from {100 * _SHARE:g} % on):\n\n{text}"


def _kept(gain: float, ordinary: float) -> str:
    if ordinary <= 0:
        return f"{_NONE} (the ordinary one gained nothing)"
    return f"{100 * gain / ordinary:.1f} % {'✓' if gain / ordinary >= _SHARE else '✗'}"


def _run(folder: Path) -> dict[str, Any] | None:
    run = read_json(folder / ADAPTER / RUN_FILE)
    losses = run.get("losses") if isinstance(run, dict) else None
    if not isinstance(losses, dict) or losses.get("heldout_base") is None or losses.get("heldout_trained") is None:
        return None
    return dict(run)


def _mean(of: Mapping[str, Any], part: str) -> float:
    values: list[float] = [one[part] for one in of["items"] if part in one]
    return 100 * sum(values) / len(values)


def _percent(of: dict[str, Any] | None) -> str:
    return _NONE if of is None else _points(interval([one[SCORE] for one in of["items"]]))


def _points(of: Interval, sign: bool = False) -> str:
    plus = "+" if sign else ""
    return f"{100 * of.mean:{plus}.1f} [{100 * of.low:{plus}.1f}, {100 * of.high:{plus}.1f}]".replace("-", "−")
