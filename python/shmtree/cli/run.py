"""`shmtree run`: an unmodified program with shmtree's queues and pipes, and a table of what they did."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._run import commands, launch, notes, results
from . import output_files, tables
from .arguments import add_verb

_HEADS = ("KIND", "CREATED AT", "THROUGH", "OBJECTS", "MESSAGES", "BYTES", "PUT", "GET", "BLOCKED", "CPU")
_PROFILE_HEADS = ("PICKLE", "SAVES")
_WIDE_HEADS = frozenset(["THROUGH", "OBJECTS", "PUT", "GET", "BLOCKED"])  # left out on a narrow terminal
_WIDE = 100  # columns of a terminal
_MAX_ROWS = 50  # in the table
_DATA_LOADER = os.path.join("torch", "utils", "data")
_SHARED_TENSORS = "its tensors of share_memory_() arrive as copies; see docs/run.md"


class _Report(NamedTuple):
    ended: launch.Ended
    profile: bool
    processes: int
    rows: Sequence[results.Row]
    savings: results.Savings | None
    not_replaced: Sequence[notes.Note]


def run(options: argparse.Namespace) -> int:
    """Runs the program, reports, and ends as the program ended."""
    try:
        command = commands.command_of(options.program)
    except ValueError as error:
        print(f"shmtree: {error}", file=sys.stderr)
        return 2
    if os.pathsep in str(launch.HOOK):
        raise OSError(f"shmtree is installed in {launch.HOOK.parent}, and PYTHONPATH cannot hold a path with a colon")
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise OSError("run needs PYTHONPATH and sitecustomize; start Python without -I, -E and -S")
    if options.report:
        with output_files.replacing(options.report, "w") as out:  # before the program, which may take hours
            report = _run(command, options.profile)
            json.dump(_as_json(report), out, indent=1)
            out.write("\n")
    else:
        report = _run(command, options.profile)
        if sys.stderr is not None:
            _print(report)
    code = report.ended.exit_code
    if code < 0:
        sys.stdout.flush()
        launch.die_of(-code)
    return code


def _run(command: list[str], profile: bool) -> _Report:
    command_s = time.process_time()  # to start this command
    with launch.directory(profile) as directory:
        ended = launch.run(command, directory)
        processes, rows, import_s = results.read(directory)
        savings = results.savings(rows, ended.seconds, ended.cpu_seconds, import_s, command_s) if profile else None
        return _Report(ended, profile, processes, rows, savings, notes.read(Path(directory)))


def _as_json(report: _Report) -> dict[str, Any]:
    return {
        **report.ended._asdict(),
        "profile": report.profile,
        "processes": report.processes,
        "rows": [row._asdict() for row in report.rows],
        "savings": report.savings and report.savings._asdict(),
        "not_replaced": [note._asdict() for note in report.not_replaced],
    }


def _print(report: _Report) -> None:
    ended = report.ended
    how = f"exit code {ended.exit_code}" if ended.exit_code >= 0 else f"killed by signal {-ended.exit_code}"
    used = f"{report.processes} process{'' if report.processes == 1 else 'es'} used queues, pipes or pools"
    print(f"shmtree run: {ended.seconds:.2f} s, {ended.cpu_seconds:.2f} s of CPU, {how}; {used}", file=sys.stderr)
    if report.rows:
        _print_rows(report)
    for line in _remarks(report):
        print(line, file=sys.stderr)
    sys.stderr.flush()


def _print_rows(report: _Report) -> None:
    heads = (*_HEADS, *_PROFILE_HEADS) if report.profile else _HEADS
    is_narrow = sys.stderr.isatty() and shutil.get_terminal_size().columns < _WIDE
    kept = [each for each in heads if not (is_narrow and each in _WIDE_HEADS)]
    rows = [dict(zip(heads, _cells(row, report.profile))) for row in report.rows[:_MAX_ROWS]]
    table = tables.Table(kept, [[(row[head], "") for head in kept] for row in rows])
    tables.show(table, file=sys.stderr)


def _cells(row: results.Row, profile: bool) -> list[str]:
    cells = [
        row.kind,
        _short(row.place),
        _library(row.via),
        str(row.objects),
        str(row.messages),
        tables.size(row.bytes),
        *map(_seconds, (row.put_s, row.get_s, row.blocked_s, row.cpu_s)),
    ]
    if profile:
        cells += [_seconds(row.pickle_s), "-" if row.saved_cpu_s is None else _seconds(row.saved_cpu_s)]
    return cells


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.1f} s"


def _short(place: str) -> str:
    """Returns a file and line, relative to the current directory if the file is below it."""
    below = os.getcwd() + os.sep
    return tables.printable(place.removeprefix(below)) or "-"


def _library(place: str) -> str:
    """Returns the last two parts of the path of a library's file, and the line."""
    return tables.printable(os.sep.join(place.split(os.sep)[-2:])) or "-"


def _remarks(report: _Report) -> list[str]:
    lines = [f"{_short(row.place)}: {_SHARED_TENSORS}" for row in report.rows if _warns_of_tensors(row, report)]
    lines += [
        f"Not replaced: {tables.printable(note.what)}{f' at {_short(note.where)}' if note.where else ''}:"
        f" {tables.printable(note.reason)}"
        for note in report.not_replaced
    ]
    if (hidden := len(report.rows) - _MAX_ROWS) > 0:
        lines.append(f"{hidden} more rows took less time; --report FILE writes all of them.")
    if report.savings is not None:
        lines.append(_verdict(report.savings, report.ended))
    return lines


def _verdict(savings: results.Savings, ended: launch.Ended) -> str:
    each = [f"{_seconds(abs(saved))} {'less' if saved > 0 else 'more'}" for saved in savings]
    text = f"With shmtree, the program would take about {each[0]} (of {ended.seconds:.2f} s)"
    text += f" and {each[1]} of CPU time (of {ended.cpu_seconds:.2f} s)."
    return text if savings.seconds > 0 else f"Nothing is gained. {text}"


def _warns_of_tensors(row: results.Row, report: _Report) -> bool:
    """Returns True if messages have shared tensors. A DataLoader shares tensors only to send them."""
    return row.shares_tensors and not report.profile and _DATA_LOADER not in row.via


def own_words(words: Sequence[str]) -> int:
    """Returns the number of words that are options of this command. The others are the program and its arguments."""
    count = 0
    while count < len(words) and (words[count] == "-h" or words[count].startswith("--")) and words[count] != "--":
        count += 1 + (len(words[count]) > 2 and "--report".startswith(words[count]))
    return min(count, len(words))


def add_to(verbs: Any) -> None:
    verb = add_verb(
        verbs,
        "run",
        "run a program with shmtree's queues and pipes",
        """
        shmtree run train.py --epochs 3
        shmtree run -u -m package.train
        shmtree run --profile --report run.json pytest tests
        """,
        "The program stays as it is: queues, pipes and pools of multiprocessing and torch.multiprocessing are replaced"
        " in each of its processes. At the end, the command prints what each did to standard error, or writes it to"
        " FILE, and ends as the program ended. Its own options come first. All that follows is as with python, or is a"
        " command on PATH with its arguments.",
    )
    verb.usage = "shmtree run [--report FILE] [--profile] [PYTHON OPTIONS]\n" + 19 * " "
    verb.usage += "(SCRIPT | - | -m MODULE | -c CODE | COMMAND) [ARGS...]"
    verb.add_argument("--report", metavar="FILE", help="write the figures to FILE as JSON, and print no table")
    verb.add_argument(
        "--profile", action="store_true", help="replace nothing, measure, and estimate what shmtree would save"
    )
    verb.add_argument("-u", action="store_true", help="this and other options of Python, such as -O, -W and -X")
    verb.add_argument("-m", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module, with its arguments")
    verb.add_argument("-c", metavar="CODE", nargs=argparse.REMAINDER, help="run a text, with its arguments")
    verb.add_argument(
        "program",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="a script, - for standard input, or a command on PATH; and its arguments",
    )
    verb.set_defaults(run=run)
