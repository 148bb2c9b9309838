"""Completions for shells, which shtab makes from the parser."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from .results import check_output

SHELLS = ("bash", "zsh", "tcsh")
#: Prints one name a line, for completion. Names that a word of a shell cannot hold are left out.
_LIST_NAMES = "shmtree ls 2>/dev/null | cut -f 1 | grep -x '[[:alnum:]_.:/+-]*'"


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the commands of a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns a script that completes commands, options, files and names. Needs shtab."""
    import shtab

    completed = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    if hasattr(shtab, "cmd"):
        completed["NAME"] = shtab.cmd(_LIST_NAMES)
    for argument in (each for one in (parser, *verbs_of(parser).values()) for each in one._actions):
        for kind in completed.keys() & re.findall("[A-Z]+", str(argument.metavar)):
            argument.complete = completed[kind]  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell))


class PrintCompletion(argparse.Action):
    """Prints the script for a shell, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, options: Any, shell: Any, option: str | None = None) -> None:
        try:
            text = completion(parser, shell)
        except ModuleNotFoundError as error:
            parser.exit(1, f"shmtree: {option} needs {error.name}; run pip install 'shmtree[cli]'\n")
        check_output()
        sys.stdout.write(text)
        parser.exit()


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-completion", choices=SHELLS, action=PrintCompletion, help="print a script that completes command lines"
    )
