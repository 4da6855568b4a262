"""Writes the tables of docs/performance.md that stand between marks from the runs in docs/measured/workflows.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icarus_local.bench.records import Case
from icarus_local.bench.runs_file import read_report
from icarus_local.bench.system import ICARUS

_FOLDER = Path(__file__).parent
_PAGE, _RUNS = _FOLDER / "performance.md", _FOLDER / "measured" / "workflows.json"
_BEGIN, _END = "<!-- measured: written by docs/generate_measured.py -->\n", "<!-- end of measured -->\n"
_HEAD = (
    "median s", "P95 s", "first token s", "tok/s", "encoded", "first turn s", "K and V MiB", "resident MiB",
    "P95 over ours", "our tok/s over theirs", "total over ours",
)  # fmt: skip


def generated() -> str:
    """The whole page, with the tables of the runs that there are."""
    before, _, rest = _PAGE.read_text("utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    tables = "\n".join(_table(result) for result in read_report(_RUNS)["results"])
    return f"{before}{_BEGIN}\n{tables}\n{_END}{after}"


def _table(result: Mapping[str, Any]) -> str:
    systems = result["systems"]
    turns, cold = systems[ICARUS]["turns"], systems[ICARUS]["cold"]["turns"]
    case = Case.model_validate({key: result[key] for key in Case.model_fields})
    lines = [
        f"**{case}**: {cold} first and {turns} warm turns\n",
        f"| | {' | '.join(_HEAD)} |",
        "|---" * (len(_HEAD) + 1) + "|",
    ]
    lines += [
        f"| {name} | {' | '.join(_cells(figures, result['gain'].get(name)))} |" for name, figures in systems.items()
    ]
    return "\n".join(lines) + "\n"


def _cells(figures: Mapping[str, Any], gain: Mapping[str, float] | None) -> list[str]:
    rss = figures["rss_bytes"]
    cells = [f"{figures[key]:.2f}" for key in ("p50_s", "p95_s", "ttft_s")]
    cells += [
        f"{figures['tok_s']:.1f}",
        f"{figures['encoded'] / figures['turns']:,.0f}",
        f"{figures['cold']['mean_s']:.2f}",
    ]
    cells += [f"{figures['kv_bytes'] / 2**20:,.0f}", "" if rss is None else f"{rss / 2**20:,.0f}"]
    return cells + ([""] * 3 if gain is None else [f"{gain[key]:.2f}" for key in ("p95", "tok_s", "total")])


if __name__ == "__main__":
    _PAGE.write_text(generated(), "utf-8")
