"""Puts trained specialists into the package: their adapters as f16, their runs' records, and the tables of their cards.

    python models/ship_adapters.py [RUNS [DATA]]

An ICaRus run that is not finished is passed over; one that the packaged recipe and the data there did not make is an
error. Words that stand in a card before its table stay as they are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from icarus_local.errors import IcarusError
from icarus_models.commands.common import DATA, PAGE, RUNS, embedded
from icarus_models.run_files import ADAPTER, RUN_FILE, write_text
from icarus_models.run_record import is_finished
from icarus_models.specialist_runs import Folders, recipe_of
from icarus_models.specialists import NAMES

ADAPTERS = Path(__file__).parent / "icarus_models" / "adapters"
_TABLE = "| | |\n"


def ship(name: str, run: Path, base: Path) -> None:
    """Converts one run's adapter, and copies what is known about it."""
    given = [str(run / ADAPTER), "--base", str(base), "-o", str(ADAPTERS / f"{name}.gguf")]
    subprocess.run(["icarus-convert", "adapter", *given, "--outtype", "f16", "--force"], check=True)
    shutil.copyfile(run / ADAPTER / RUN_FILE, ADAPTERS / f"{name}.run.json")
    card = ADAPTERS / f"{name}.md"
    words = card.read_text("utf-8").partition(_TABLE)[0] if card.is_file() else f"# {name}\n\n"
    made = (run / ADAPTER / "README.md").read_text("utf-8").partition(_TABLE)[2]
    write_text(card, words + _TABLE + made.replace(RUN_FILE, f"{name}.run.json"))


def main(runs: Path = RUNS, data: Path = DATA) -> None:
    """Ships every specialist whose ICaRus run is finished. Raises `IcarusError`: a run was made of something else."""
    base = embedded()
    recipes = [recipe_of(name, "icarus", Folders(data, runs, PAGE), base) for name in NAMES]
    for recipe in [recipe for recipe in recipes if is_finished(recipe, base)]:
        ship(recipe.agent, recipe.out, base)


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except IcarusError as error:
        sys.exit(str(error))
