"""`shmtree run`: an unmodified program with shmtree's queues and pipes, and a table of what they did."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._run import commands, launch, notes, results
from . import output_files
from .arguments import add_verb
from .drawing import Table, printable, show, size
from .results import failed

_HEADS = "KIND|CREATED AT|THROUGH|OBJECTS|MESSAGES|BYTES|PUT|GET|BLOCKED|CPU".split("|")
_PROFILE_HEADS = [*_HEADS, "PICKLE", "SAVES"]
_MAX_ROWS = 50  # in the table
_DATA_LOADER = os.path.join("torch", "utils", "data")
_SHARED_TENSORS = "its tensors of share_memory_() arrive as copies; see docs/run.md"


class _Report(NamedTuple):
    ended: launch.Ended
    processes: int
    rows: Sequence[results.Row]
    savings: results.Savings | None  #: of a run with --profile
    not_replaced: Sequence[notes.Note]


def run(options: argparse.Namespace) -> int:
    """Runs the program, reports, and ends as the program ended."""
    try:
        command = commands.command_of(options.program)
    except ValueError as error:
        return failed(error, code=2)
    if os.pathsep in str(launch.HOOK):
        raise OSError(f"shmtree is installed in {launch.HOOK.parent}, and PYTHONPATH cannot hold a path with a colon")
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise OSError("run needs PYTHONPATH and sitecustomize; start Python without -I, -E and -S")
    if options.report:
        with output_files.replacing(options.report, "w") as out:  # before the program, which may run for hours
            report = _run(command, options.profile)
            out.write(json.dumps(_as_json(report), indent=1) + "\n")
    else:
        report = _run(command, options.profile)
        if sys.stderr is not None:
            with contextlib.suppress(OSError):  # the program's exit code does not depend on the report
                _print(report)
    code = report.ended.exit_code
    if code < 0:
        sys.stdout.flush()
        launch.die_of(-code)
    return code


def _run(command: list[str], profile: bool) -> _Report:
    with launch.directory(profile) as directory:
        ended = launch.run(command, directory)
        processes, rows, import_s = results.read(directory)
        remarks = notes.read(Path(directory))
    savings = None
    if profile:
        start_s = import_s + processes * _start_cost() + time.process_time()  # the last process is this command itself
        savings = results.savings(rows, ended, start_s)
    return _Report(ended, processes, rows, savings, remarks)


def _start_cost() -> float:
    """Returns the CPU time of a process for its first message and its exit, in addition to that of a standard queue.

    Returns 0 if that process fails on this machine.
    """
    program = [sys.executable, "-c", "import multiprocessing as mp; queue = mp.Queue(); queue.put(0); queue.get()"]
    silent = {"setpgroup": 0, "file_actions": [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]}
    with launch.directory(profile=False) as directory:
        replaced = launch.run(program, directory, **silent)
        import_s = results.read(directory)[2]
    plain = launch.run(program, None, **silent)
    if replaced.exit_code != 0 or plain.exit_code != 0:
        return 0.0
    return max(replaced.cpu_seconds - import_s - plain.cpu_seconds, 0.0)


def _as_json(report: _Report) -> dict[str, Any]:
    return {
        **report.ended._asdict(),
        "profile": report.savings is not None,
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
        heads = _HEADS if report.savings is None else _PROFILE_HEADS
        rows = [[(cell, "") for cell in _cells(row)[: len(heads)]] for row in report.rows[:_MAX_ROWS]]
        show(Table(heads, rows), file=sys.stderr)
    for remark in _remarks(report):
        print(remark, file=sys.stderr)
    sys.stderr.flush()


def _cells(row: results.Row) -> list[str]:
    via = printable(os.sep.join(row.via.split(os.sep)[-2:])) or "-"  # shows only the end of a library's path
    places = [row.kind, _short(row.place), via]
    numbers = [str(row.objects), str(row.messages), size(row.bytes)]
    times = (row.put_s, row.get_s, row.blocked_s, row.cpu_s, row.pickle_s)
    return [*places, *numbers, *map(_seconds, times), "-" if row.saved_cpu_s is None else _seconds(row.saved_cpu_s)]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.1f} s"


def _short(place: str) -> str:
    """Returns a file and line, relative to the current directory if the file is below it."""
    return printable(place.removeprefix(os.getcwd() + os.sep)) or "-"


def _remarks(report: _Report) -> Iterator[str]:
    for row in report.rows:
        # A DataLoader shares tensors only to send them.
        if row.shares_tensors and report.savings is None and _DATA_LOADER not in row.via:
            yield f"{_short(row.place)}: {_SHARED_TENSORS}"
    for note in report.not_replaced:
        where = f" at {_short(note.where)}" if note.where else ""
        yield f"Not replaced: {printable(note.what)}{where}: {printable(note.reason)}"
    if (hidden := len(report.rows) - _MAX_ROWS) > 0:
        yield f"{hidden} more rows took less time; --report FILE writes all of them."
    if report.savings is not None:
        yield _verdict(report.savings, report.ended)


def _verdict(savings: results.Savings, ended: launch.Ended) -> str:
    each = [f"{_seconds(abs(saved))} {'less' if saved > 0 else 'more'}" for saved in savings]
    text = f"With shmtree, the program would take about {each[0]} (of {ended.seconds:.2f} s)"
    text += f" and {each[1]} of CPU time (of {ended.cpu_seconds:.2f} s)."
    return text if savings.seconds > 0 else f"Nothing is gained. {text}"


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Returns the options. The command line of the program begins with the first word that is not an option."""
    count = 0
    while count < len(words) and (words[count] == "-h" or words[count].startswith("--")) and words[count] != "--":
        count += 1 + (len(words[count]) > 2 and "--report".startswith(words[count]))
    verbs = argparse.ArgumentParser(prog="shmtree").add_subparsers(dest="verb")
    options = add_to(verbs).parse_args(words[:count])
    options.verb, options.program = "run", words[count:]
    return options


def add_to(verbs: Any) -> argparse.ArgumentParser:
    verb = add_verb(
        verbs,
        "run",
        "run a program with shmtree's queues and pipes",
        """
        shmtree run train.py --epochs 3
        shmtree run -m package.train
        shmtree run --profile --report run.json pytest tests
        """,
        "The program stays as it is: queues, pipes and pools of multiprocessing and torch.multiprocessing are replaced"
        " in each of its processes. At the end, the command prints what each did to standard error, or writes it to"
        " FILE, and ends as the program ended. Its own options come first. All that follows is as with python, with"
        " options such as -u, -O, -W and -X, or is a command on PATH with its arguments.",
    )
    verb.usage = "shmtree run [--report FILE] [--profile] [PYTHON OPTIONS]\n" + 19 * " "
    verb.usage += "(SCRIPT | - | -m MODULE | -c CODE | COMMAND) [ARGS...]"
    verb.add_argument("--report", metavar="FILE", help="write the figures to FILE as JSON, and print no table")
    verb.add_argument(
        "--profile", action="store_true", help="replace nothing, measure, and estimate what shmtree would save"
    )
    verb.add_argument("-m", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module, with its arguments")
    verb.add_argument("-c", metavar="CODE", nargs=argparse.REMAINDER, help="run a text, with its arguments")
    verb.add_argument(
        "program",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="a script, - for standard input, or a command on PATH; and its arguments",
    )
    verb.set_defaults(run=run)
    return verb
