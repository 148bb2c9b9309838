"""``python -m shmtree record``, ``play``, ``export`` and ``trace``."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import queue
import sys
from collections.abc import Callable
from typing import Any

from ..errors import Error
from ..recording import Recording, _export, _playback
from ..recording._mcap import Writer
from ..recording._relay import Relay
from ..recording._tap import Source, open_source, record
from . import drawing, progress, trace
from .arguments import add_json, add_verb, rate, seconds
from .output_files import replacing
from .results import count, failed, print_line
from .stopping import asked_to_stop

_JSON_HELP = "print lines of JSON"
_SECONDS_HELP = "stop after this time (default: at the end of the streams, or Ctrl-C)"
_NAME_HELP = "name of a channel, Queue, Broadcast or Latest"


def _record(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.names))
    if options.relay is not None and (len(names) > 1 or options.relay in names):
        given = f"{', '.join(names)} for {options.relay}"
        return failed(f"--relay takes one channel, for another one to receive, not {given}")
    writer = Writer(options.out)

    def skip(name: str, error: Exception) -> None:
        names.remove(name)
        failed(f"not recorded: {drawing.printable(name)}: {error}")

    def ready() -> None:
        text = f"recording {count(len(names), 'channel')} to {drawing.printable(options.out)}"
        print_line(options, text, recording=names, out=options.out)
        bar.start(None)

    try:
        with progress.Bar("recording") as bar, writer, asked_to_stop(options.seconds) as should_stop:

            def is_over() -> bool:
                bar.show(writer.messages, f"{count(writer.messages, 'message')}, {drawing.size(writer.nbytes)}")
                return should_stop()

            source: Callable[[Writer, str], Source] = open_source
            if options.relay is not None:
                source = functools.partial(Relay, to=options.relay, should_leave=lambda: should_stop(2))
            recorded = record(writer, list(names), ready, is_over, source, skip)
    except (OSError, ValueError, Error, queue.Full) as error:
        kept = f"; the file has {count(writer.messages, 'message')} ({drawing.size(writer.nbytes)}) and can be read"
        return failed(f"{error}{kept if writer.messages else ''}")
    for each in recorded:
        text = f"{drawing.printable(each.name)}: {each.messages} recorded, {each.missed} missed"
        print_line(options, text, channel=each.name, recorded=each.messages, missed=each.missed)
    return 0


def _play(options: argparse.Namespace) -> int:
    recording = Recording(options.file)
    messages = _playback.messages_of(recording, options.channel)
    player = _playback.Player(options.to, _playback.kind_of(recording, options.channel))
    text = f"playing {count(len(messages), 'message')} to {drawing.printable(options.to)}"
    print_line(options, text, playing=len(messages), to=options.to)
    with asked_to_stop() as should_stop, progress.Bar("playing") as bar:
        try:
            bar.start(None if options.loop else len(messages))
            while messages and not should_stop():
                player.play(bar.over(messages), options.rate, should_stop)
                if not options.loop:
                    break
            player.close(should_stop)
        except (OSError, ValueError, Error) as error:
            return failed(f"after {player.put} messages: {error}")
    print_line(options, f"{count(player.put, 'message')} played", played=player.put)
    return 0


def _run_export(options: argparse.Namespace) -> int:
    if options.json and options.out is None:
        return failed("--json requires --out FILE: otherwise standard output has the messages", code=2)
    if options.format == "parquet" and options.arrays is not None:
        return failed(
            f"--arrays {options.arrays} is for --format jsonl: Parquet contains arrays with their dtypes", code=2
        )
    arrays = options.arrays or "list"
    if options.format == "parquet" and options.out is None:
        return failed("--format parquet requires --out FILE: Parquet cannot be written to standard output")
    with contextlib.suppress(OSError):
        if options.out is not None and os.path.samefile(options.file, options.out):
            return failed(f"--out {options.out} is the recording itself; name another file")
    messages = _playback.messages_of(Recording(options.file), options.channel)
    if options.out is None:
        _export.to_jsonl(messages, sys.stdout.write, options.allow_pickle, arrays)
        return 0
    is_parquet = options.format == "parquet"
    try:
        with progress.Bar("exporting") as bar, replacing(options.out, "wb" if is_parquet else "w") as out:
            bar.start((1 + is_parquet) * len(messages))  # Parquet: each counts when read and when written
            if is_parquet:
                _export.to_parquet(messages, out, options.allow_pickle, bar.advance)
            else:
                _export.to_jsonl(bar.over(messages), out.write, options.allow_pickle, arrays)
    except ModuleNotFoundError as error:
        return failed(f"--format parquet needs {error.name}, which is not installed; run pip install pyarrow")
    if options.json:
        print(json.dumps({"exported": len(messages), "out": options.out}))
    return 0


def _run_trace(options: argparse.Namespace) -> int:
    if bool(options.names) == options.all:
        return failed("trace takes the names of channels, or --all", code=2)

    def ready(channels: int, refused: list[str]) -> None:
        for each in refused:
            failed(f"not traced: {each}")
        print_line(options, f"tracing {count(channels, 'channel')}", tracing=channels, not_traced=refused)

    with replacing(options.out, "w") as out, asked_to_stop(options.seconds) as should_stop:
        traced = trace.trace(options.names, ready, should_stop)
        trace.write(traced, out)
    for each in traced:
        text = f"{each.name}: {len(each.times)} traced, {each.missed} missed"
        print_line(options, text, channel=each.name, traced=len(each.times), missed=each.missed)
    return 0


def _add(verbs: Any, run: Callable[[argparse.Namespace], int], *verb: str) -> argparse.ArgumentParser:
    added = add_verb(verbs, *verb)
    added.set_defaults(run=run)
    return added


def _add_record(verbs: Any) -> None:
    examples = """
        shmtree record samples webcam --out run.mcap
        shmtree record samples --seconds 60 --out run.mcap
        shmtree record samples --relay recorded --out run.mcap
        """
    summary = "write the messages of channels to a file"
    verb = _add(verbs, _record, "record", summary, examples, "Receivers still get the messages.")
    add = verb.add_argument
    add("names", metavar="NAME", nargs="+", help=_NAME_HELP)
    out = "MCAP file; replaces an existing one and keeps its mode; a new one is for this user only"
    add("--out", metavar="FILE", required=True, help=out)
    add("--seconds", metavar="S", type=seconds, help=_SECONDS_HELP)
    add("--relay", metavar="NAME", help="receive each message, record it and pass it on to this channel")
    add_json(verb, _JSON_HELP)


def _add_play(verbs: Any) -> None:
    examples = """
        shmtree play run.mcap --to samples
        shmtree play run.mcap --to samples --channel actions --rate 2
        shmtree play run.mcap --to samples --rate 0 --loop
        """
    verb = _add(verbs, _play, "play", "put the messages of a recording into a channel", examples)
    add = verb.add_argument
    add("file", metavar="FILE", help="a recording")
    add("--to", metavar="NAME", required=True, help=f"{_NAME_HELP}; created if it does not exist")
    speed = "speed relative to the recording (default: %(default)s); 0: no pauses"
    add("--rate", metavar="N", type=rate, default=1.0, help=speed)
    add("--loop", action="store_true", help="repeat until interrupted")
    add("--channel", metavar="NAME", help="only messages of this channel (default: all, by time)")
    add_json(verb, _JSON_HELP)


def _add_export(verbs: Any) -> None:
    examples = """
        shmtree export run.mcap --format jsonl | head
        shmtree export run.mcap --format jsonl --channel actions --out run.jsonl
        shmtree export run.mcap --format jsonl --arrays base64 --out run.jsonl
        shmtree export run.mcap --format parquet --out run.parquet
        """
    verb = _add(verbs, _run_export, "export", "convert a recording to JSON lines or Parquet", examples)
    add = verb.add_argument
    add("file", metavar="FILE", help="a recording")
    add("--format", choices=("jsonl", "parquet"), required=True, help="format of the output")
    add("--out", metavar="FILE", help="output file (default for jsonl: standard output)")
    add("--channel", metavar="NAME", help="only messages of this channel (default: all)")
    arrays = "arrays in JSON: nested lists; base64, dtype and shape; or only dtype and shape (default: list)"
    add("--arrays", choices=tuple(_export.ARRAYS), help=arrays)
    add("--allow-pickle", action="store_true", help="load pickles, which can run any code")
    add_json(verb, "with --out: print the result as a line of JSON")


def _add_trace(verbs: Any) -> None:
    examples = """
        shmtree trace samples actions --out trace.json
        shmtree trace --all --seconds 5 --out trace.json
        """
    details = "Perfetto and chrome://tracing show the file, which is in Chrome's format."
    verb = _add(verbs, _run_trace, "trace", "write the times of puts and receives", examples, details)
    add = verb.add_argument
    add("names", metavar="NAME", nargs="*", help=_NAME_HELP)
    add("--all", action="store_true", help="trace everything of this user that can be traced")
    out = "JSON file, readable by this user only; replaces an existing one"
    add("--out", metavar="FILE", required=True, help=out)
    add("--seconds", metavar="S", type=seconds, help=_SECONDS_HELP)
    add_json(verb, _JSON_HELP)


def add_to(verbs: Any) -> None:
    for add in (_add_record, _add_play, _add_export, _add_trace):
        add(verbs)
