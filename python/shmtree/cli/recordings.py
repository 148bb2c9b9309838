"""``python -m shmtree record``, ``play``, ``export`` and ``trace``."""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import math
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import Error
from ..recording import Recording, _playback
from ..recording._mcap import Writer
from ..recording._relay import Relay
from ..recording._tap import Source, Tap, record
from . import tables, trace
from .arguments import duration


@contextlib.contextmanager
def _asked_to_stop(seconds: float | None = None) -> Iterator[Callable[..., bool]]:
    """Yields a function that returns True after Ctrl-C or SIGTERM (`times` of them), or after `seconds`.

    These are regular ends, and no errors.
    """
    signals: list[int] = []
    end = math.inf if seconds is None else time.monotonic() + seconds
    before = {each: signal.signal(each, lambda number, _: signals.append(number)) for each in _ENDS}
    try:
        yield lambda times=1: len(signals) >= times or (times == 1 and time.monotonic() >= end)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


_ENDS = (signal.SIGINT, signal.SIGTERM)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _failed(what: object, code: int = 1) -> int:
    print(f"shmtree: {what}", file=sys.stderr)
    return code


def _record(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.names))
    if options.relay is not None and (len(names) > 1 or options.relay in names):
        return _failed(
            f"--relay takes one channel, for another one to receive, not {', '.join(names)} for {options.relay}"
        )
    writer = Writer(options.out)

    def ready() -> None:
        print(f"recording {_count(len(names), 'channel')} to {tables.printable(options.out)}", flush=True)

    try:
        with writer, _asked_to_stop(options.seconds) as should_stop:
            source: Callable[[Writer, str], Source] = Tap
            if options.relay is not None:
                source = functools.partial(Relay, to=options.relay, should_leave=lambda: should_stop(2))
            recorded = record(writer, names, ready, should_stop, source)
    except (OSError, ValueError, Error) as error:
        kept = f"; the file has {_count(writer.messages, 'message')} ({tables.size(writer.nbytes)}) and can be read"
        return _failed(f"{error}{kept if writer.messages else ''}")
    for each in recorded:
        print(f"{tables.printable(each.name)}: {each.messages} recorded, {each.missed} missed")
    return 0


def _play(options: argparse.Namespace) -> int:
    try:
        messages = _playback.messages_of(Recording(options.file), options.channel)
        player = _playback.Player(options.to)
    except (OSError, ValueError, Error) as error:
        return _failed(error)
    with _asked_to_stop() as should_stop:
        try:
            print(f"playing {_count(len(messages), 'message')} to {tables.printable(options.to)}", flush=True)
            while messages and not should_stop():
                player.play(messages, options.rate, should_stop)
                if not options.loop:
                    break
            player.close(should_stop)
        except (Error, ValueError) as error:
            return _failed(f"after {player.put} messages: {error}")
    print(f"{_count(player.put, 'message')} played")
    return 0


def _export(options: argparse.Namespace) -> int:
    if options.format == "parquet" and options.out is None:
        return _failed("--format parquet requires --out FILE: Parquet cannot be written to standard output")
    with contextlib.suppress(OSError):
        if options.out is not None and os.path.samefile(options.file, options.out):
            return _failed(f"--out {options.out} is the recording itself; name another file")
    try:
        messages = _playback.messages_of(Recording(options.file), options.channel)
        if options.format == "parquet":
            with _replacing(options.out, "wb") as out:
                _playback.to_parquet(messages, out, options.allow_pickle)
        elif options.out is None:
            _playback.to_jsonl(messages, sys.stdout, options.allow_pickle)
        else:
            with _replacing(options.out, "w") as out:
                _playback.to_jsonl(messages, out, options.allow_pickle)
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        return _failed(f"--format parquet needs {error.name}, which is not installed; run pip install pyarrow")
    except (OSError, ValueError, Error) as error:
        return _failed(error)
    return 0


def _run_trace(options: argparse.Namespace) -> int:
    if bool(options.names) == options.all:
        return _failed("trace takes the names of channels, or --all", code=2)

    def ready(count: int, refused: list[str]) -> None:
        for each in refused:
            print(f"shmtree: not traced: {each}", file=sys.stderr)
        print(f"tracing {_count(count, 'channel')}", flush=True)

    try:
        with _replacing(options.out, "w") as out, _asked_to_stop(options.seconds) as should_stop:
            traced = trace.trace(options.names, ready, should_stop)
            trace.write(traced, out)
    except (OSError, ValueError, Error) as error:
        return _failed(error)
    for each in traced:
        print(f"{each.name}: {len(each.times)} traced, {each.missed} missed")
    return 0


@contextlib.contextmanager
def _replacing(path: str, mode: str) -> Iterator[Any]:
    """Opens a new file that only this user may read, and that replaces `path` when the block ends without an exception.

    Until then, an existing file stays unchanged. If the folder of `path` refuses new files, collects the contents in a
    temporary file and copies them into `path` at the end. A failure of that copy leaves `path` incomplete. If `path` is
    a pipe or a device, opens it directly. Raises PermissionError as `_private` does.
    """
    target = os.path.realpath(path)
    if os.path.exists(path):
        if not os.path.isfile(path) or not os.path.exists(target):
            with open(path, mode, opener=_private) as out:
                yield out
            return
        os.close(_private(path, os.O_WRONLY))  # checks the rights of other users; changes nothing
    made = _new_file_beside(target, path)
    if made is None:
        with tempfile.TemporaryFile(f"{mode}+") as contents:
            yield contents
            contents.seek(0)
            with open(path, mode, opener=_private) as out:
                shutil.copyfileobj(contents, out)
        return
    descriptor, temporary = made
    try:
        with open(descriptor, mode) as out:
            yield out
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _new_file_beside(target: str, path: str) -> tuple[int, str] | None:
    """Returns the descriptor and path of a new file. None if `target` exists and its folder refuses new files."""
    try:
        return tempfile.mkstemp(prefix=".shmtree-", dir=os.path.dirname(target))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and os.path.exists(target):
            return None
        raise OSError(error.errno, error.strerror, path) from None  # name the user's file


def _private(path: str, flags: int) -> int:
    """Opens a file that only this user may read. Raises PermissionError if it exists and other users have rights."""
    descriptor = os.open(path, flags & ~os.O_TRUNC, 0o600)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode):
            rights = stat.S_IMODE(about.st_mode)
            if rights & 0o077:
                raise PermissionError(
                    errno.EACCES, f"the file exists and other users may access it (mode {rights:04o}); remove it", path
                )
            if flags & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 <= rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is out of range; a rate is positive, or 0 for no pauses")
    return rate


def add_to(verbs: Any) -> None:
    verb = verbs.add_parser("record", help="write the messages of channels to a file; receivers still get them")
    verb.add_argument("names", metavar="NAME", nargs="+", help="name of a channel or queue")
    verb.add_argument(
        "--out", metavar="FILE", required=True, help="MCAP file, readable by this user only; replaces an existing one"
    )
    verb.add_argument(
        "--seconds", type=duration, help="stop after this time (default: at the end of the streams, or Ctrl-C)"
    )
    verb.add_argument("--relay", metavar="NAME", help="receive each message, record it and pass it on to this channel")
    verb.set_defaults(run=_record)
    verb = verbs.add_parser("play", help="put the messages of a recording into a channel")
    verb.add_argument("file", metavar="FILE")
    verb.add_argument("--to", metavar="NAME", required=True, help="name of the channel; created if it does not exist")
    verb.add_argument(
        "--rate", type=_rate, default=1.0, help="speed relative to the recording (default: %(default)s); 0: no pauses"
    )
    verb.add_argument("--loop", action="store_true", help="repeat until interrupted")
    verb.add_argument("--channel", metavar="NAME", help="only messages of this channel (default: all, by time)")
    verb.set_defaults(run=_play)
    verb = verbs.add_parser("export", help="convert a recording to JSON lines or Parquet")
    verb.add_argument("file", metavar="FILE")
    verb.add_argument("--format", choices=("jsonl", "parquet"), required=True, help="format of the output")
    verb.add_argument("--out", metavar="FILE", help="output file (default for jsonl: standard output)")
    verb.add_argument("--channel", metavar="NAME", help="only messages of this channel (default: all)")
    verb.add_argument("--allow-pickle", action="store_true", help="load pickles, which can run any code")
    verb.set_defaults(run=_export)
    verb = verbs.add_parser("trace", help="write puts and receives with their times, as a Chrome trace")
    verb.add_argument("names", metavar="NAME", nargs="*", help="name of a channel or queue")
    verb.add_argument("--all", action="store_true", help="trace all channels and queues of this user")
    verb.add_argument(
        "--seconds", type=duration, help="stop after this time (default: at the end of the streams, or Ctrl-C)"
    )
    verb.add_argument("--out", metavar="FILE", required=True, help="JSON file, readable by this user only")
    verb.set_defaults(run=_run_trace)
