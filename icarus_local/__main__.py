"""`python -m icarus_local` is the command `icarus-local`."""

from icarus_local.cli.main import main

main()
