"""The docs say what the program does: the command reference is what `--help` prints, figures are those of the runs."""

from __future__ import annotations

import re
from pathlib import Path

from docs import generate_commands, generate_measured

ROOT = Path(__file__).parent.parent


def test_the_command_reference_is_what_help_prints() -> None:
    written = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert written == generate_commands.generated(), "run: python docs/generate_commands.py"


def test_the_tables_of_performance_are_those_of_the_runs_that_are_kept() -> None:
    written = (ROOT / "docs" / "performance.md").read_text("utf-8")
    assert written.count("| icarus |") > 1
    assert written == generate_measured.generated(), "run: python docs/generate_measured.py"


def test_the_docs_name_only_files_that_exist() -> None:
    links = re.compile(r"\]\((?!https?:)([^)#]+)\)|`((?:docs|tests)/[\w./-]+\.\w+)`")
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link, path in links.findall(page.read_text("utf-8")):
            target = page.parent / link if link else ROOT / path
            assert target.exists(), f"{page.name} names {link or path}"
