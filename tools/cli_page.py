#!/usr/bin/env python3
"""Makes the part of docs/cli.md between its markers, every command with its options, from the command line's parser.

    python tools/cli_page.py           writes the page
    python tools/cli_page.py --check   fails if the page is out of date

Needs an importable shmtree. The text outside the markers is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/cli.md"
WIDTH = 118  # of lines of text
BEGIN, END = "<!-- tools/cli_page.py makes this part -->\n", "<!-- end of this part -->\n"


def commands_of(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """Returns the parser and the summary of each command, by name."""
    (action,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    summaries = {each.dest: each.help or "" for each in action._choices_actions}
    return {name: (each, summaries[name]) for name, each in action.choices.items()}


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Returns the positional arguments and then the options, without --help."""
    left_out = (argparse._HelpAction, argparse._SubParsersAction)
    own = [each for each in parser._actions if not isinstance(each, left_out)]
    return [each for each in own if not each.option_strings] + [each for each in own if each.option_strings]


def value_of(argument: argparse.Action) -> str:
    """Returns the placeholder of an argument's value, or "" if it has none."""
    if argument.nargs == 0:
        return ""
    if argument.choices:
        return "|".join(map(str, argument.choices))
    return str(argument.metavar or argument.dest.upper())


def written(argument: argparse.Action) -> str:
    """Returns an argument as on a command line."""
    return " ".join([*argument.option_strings[-1:], value_of(argument)]).strip()


def synopsis(parser: argparse.ArgumentParser) -> str:
    if parser.usage is not None:
        return parser.usage
    words = [parser.prog]
    for argument in arguments_of(parser):
        word = written(argument) + ("..." if argument.nargs in ("*", "+") else "")
        is_optional = not argument.required if argument.option_strings else argument.nargs in ("*", "?")
        words.append(f"[{word}]" if is_optional else word)
    return " ".join(words)


def explained(argument: argparse.Action) -> str:
    """Returns a list item: the argument, and its help as a sentence."""
    text = (argument.help or "") % vars(argument)
    text = re.sub(r"(?<![\w`-])--[a-z-]+", r"`\g<0>`", text)
    return textwrap.fill(f"- `{written(argument)}`: {text}.", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def section(name: str, parser: argparse.ArgumentParser) -> str:
    parts = [f"### {name}", textwrap.fill(" ".join((parser.description or "").split()), WIDTH)]
    parts.append(f"```text\n{synopsis(parser)}\n```")
    parts.append("\n".join(explained(each) for each in arguments_of(parser) if written(each) != "--json"))
    examples = "\n".join(line.strip() for line in (parser.epilog or "").splitlines()[1:])
    if examples:
        parts.append(f"```sh\n{examples}\n```")
    return "\n\n".join(part for part in parts if part)


def generated(parser: argparse.ArgumentParser) -> str:
    """Returns the part of the page between the markers."""
    commands = commands_of(parser)
    table = ["| command | does |", "|---|---|"]
    table += [f"| [{name}](#{name}) | {summary} |" for name, (_, summary) in commands.items()]
    parts = ["\n".join(table), "Options without a command:", "\n".join(map(explained, arguments_of(parser)))]
    return "\n\n".join([*parts, *(section(name, each) for name, (each, _) in commands.items())]) + "\n"


def page_of(page: str, parser: argparse.ArgumentParser) -> str:
    """Returns the page with its generated part replaced."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError("docs/cli.md lacks the markers of the generated part")
    return f"{head}{BEGIN}\n{generated(parser)}\n{END}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the page is out of date")
    options = parser.parse_args()
    from shmtree.cli.main import make_parser

    old = PAGE.read_text()
    new = page_of(old, make_parser())
    if not options.check:
        PAGE.write_text(new)
    elif new != old:
        print("docs/cli.md is out of date: run tools/cli_page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
