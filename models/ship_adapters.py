"""Puts trained specialists into the package: their adapters as f16, their runs' records, and the tables of their cards.

    python models/ship_adapters.py runs/specialists

Words that stand in a card before its table stay as they are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from icarus_models.catalog import embedded_base
from icarus_models.run_files import ADAPTER, RUN_FILE, read_json, write_text
from icarus_models.specialists import NAMES

ADAPTERS = Path(__file__).parent / "icarus_models" / "adapters"
_TABLE = "| | |\n"


def ship(name: str, run: Path) -> None:
    """Converts one run's adapter, and copies what is known about it."""
    base = embedded_base()
    assert base is not None
    assert base.path is not None
    given = [str(run / ADAPTER), "--base", str(base.path), "-o", str(ADAPTERS / f"{name}.gguf")]
    subprocess.run(["icarus-convert", "adapter", *given, "--outtype", "f16", "--force"], check=True)
    shutil.copyfile(run / ADAPTER / RUN_FILE, ADAPTERS / f"{name}.run.json")
    card = ADAPTERS / f"{name}.md"
    words = card.read_text("utf-8").partition(_TABLE)[0] if card.is_file() else f"# {name}\n\n"
    made = (run / ADAPTER / "README.md").read_text("utf-8").partition(_TABLE)[2]
    write_text(card, words + _TABLE + made.replace(RUN_FILE, f"{name}.run.json"))


def main() -> None:
    """Ships every specialist whose ICaRus run is finished."""
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/specialists")
    for name in NAMES:
        if read_json(runs / f"{name}-icarus" / ADAPTER / RUN_FILE):
            ship(name, runs / f"{name}-icarus")


if __name__ == "__main__":
    main()
