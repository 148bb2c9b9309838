"""Files that are made from the parser: completions for shells, and the man page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from .. import _core
from .results import check_output

SHELLS = ("bash", "zsh", "tcsh")
#: Prints one name a line, for completion. Names that a word of a shell cannot hold are left out.
_LIST_NAMES = "shmtree ls 2>/dev/null | cut -f 1 | grep -x '[[:alnum:]_.:/+-]*'"
_MAN_TITLE = "User Commands"


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the commands of a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Any]:
    for each in (parser, *verbs_of(parser).values()):
        yield from each._actions


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns a script that completes commands, options, files and names. Needs shtab."""
    import shtab

    names = shtab.cmd(_LIST_NAMES) if hasattr(shtab, "cmd") else None
    for argument in _arguments(parser):
        if argument.metavar == "FILE":
            argument.complete = shtab.FILE
        elif argument.metavar == "DIR":
            argument.complete = shtab.DIRECTORY
        elif names is not None and isinstance(argument.metavar, str) and "NAME" in argument.metavar.split("[")[0]:
            argument.complete = names
    return str(shtab.complete(parser, shell=shell))


def man_page(parser: argparse.ArgumentParser) -> str:
    """Returns the man page, in troff's language. Needs argparse-manpage."""
    from argparse_manpage.manpage import Manpage

    examples = [parser.epilog, *(verb.epilog for verb in verbs_of(parser).values())]
    lines = [line.strip() for each in examples for line in (each or "").splitlines()[1:]]
    parser.epilog = None
    page = Manpage(
        parser,
        {"project_name": "shmtree", "version": _core.VERSION, "manual_title": _MAN_TITLE},
        format="single-commands-section",
    )
    page.description = "show, record and play what processes share"
    text = "\n".join(lines).replace("\\", "\\\\").replace("-", "\\-")
    page.add_section("examples", ">", f".nf\n{text}\n.fi")
    return str(page)


class PrintGenerated(argparse.Action):
    """Prints a generated file, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, options: Any, values: Any, option: str | None = None) -> None:
        try:
            text = man_page(parser) if self.nargs == 0 else completion(parser, values)
        except ModuleNotFoundError as error:
            package = {"argparse_manpage": "argparse-manpage"}.get(error.name or "", error.name)
            parser.exit(1, f"shmtree: {option} needs {package}; run pip install 'shmtree[cli]'\n")
        check_output()
        sys.stdout.write(text)
        sys.stdout.flush()
        parser.exit()


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-completion", choices=SHELLS, action=PrintGenerated, help="print a script that completes command lines"
    )
    parser.add_argument("--print-man-page", nargs=0, action=PrintGenerated, help="print the man page")
