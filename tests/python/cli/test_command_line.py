"""The command line itself: help, errors, and its version."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys

import pytest

import shmtree
from shmtree.cli.main import main, make_parser

pytestmark = pytest.mark.usefixtures("runtime_directory")


def verbs() -> dict[str, argparse.ArgumentParser]:
    (action,) = [each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(action.choices)


VERBS = list(verbs())


def run_main(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-W", "error", "-m", "shmtree", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def test_version_option_prints_the_library_version():
    assert run_main("--version").stdout == f"shmtree {shmtree._core.VERSION}\n"


def test_shmtree_without_a_command_prints_help():
    done = run_main()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run_main("--help").stdout
    assert [verb for verb in VERBS if not re.search(rf"^    {verb}\b", done.stdout, re.M)] == []


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_has_examples_and_fits_80_columns(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    text = (verbs()[verb] if verb else make_parser()).format_help()
    assert max(map(len, text.splitlines())) <= 80
    examples = text.partition("\nexamples:\n")[2].splitlines()
    assert examples and all(line.startswith(f"  shmtree {verb}".rstrip()) for line in examples)


@pytest.mark.parametrize("verb", VERBS)
def test_examples_in_the_help_of_a_command_can_be_parsed(verb):
    for line in (verbs()[verb].epilog or "").splitlines()[1:]:
        words = re.sub(r" \|.*", "", line).split()
        assert words[:2] == ["shmtree", verb]
        assert make_parser().parse_args(words[1:]).verb == verb


@pytest.mark.parametrize(
    "arguments",
    [
        ("top", "--interval", "x"),
        ("crashdump", "--out", "x", "--interval", "-1"),
        ("trace", "x", "--out", "x", "--seconds", "soon"),
        ("inspect", "x", "--messages", "1.5"),
        ("metrics", "--port", "http"),
        ("metrics", "--host", ""),
        ("metrics", "--host", "a..b"),
        ("play", "x", "--to", "x", "--rate", "fast"),
        ("export", "x", "--format", "csv"),
        ("nothing",),
    ],
)
def test_errors_name_the_value_and_no_private_function(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"shmtree.*: error: argument .*", said)
    assert arguments[-1] in said
    assert re.search(r"\b_\w", said) is None and "invalid seconds" not in said and "verb" not in said


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_can_print_json(verb):
    option = "--report" if verb == "run" else "--json"  # the program below run owns standard output
    assert option in verbs()[verb].format_help()


def test_summary_of_each_command_fits_one_line():
    lines = run_main("--help").stdout.partition("\ncommands:\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[0] for line in lines] == VERBS


def test_clean_prints_removed_names_as_json():
    assert json.loads(run_main("clean", "--json").stdout) == {"removed": []}


@pytest.mark.parametrize("arguments", [("ls", "--json"), ("--print-completion", "bash")])
def test_output_that_cannot_be_written_is_an_error(arguments):
    pytest.importorskip("shtab")
    command = [sys.executable, "-W", "error", "-m", "shmtree", *arguments]
    for close, said in ((">/dev/full", "[Errno 28] No space left on device"), (">&-", "standard output is closed")):
        shell = ["sh", "-c", f'"$@" {close}', "sh", *command]
        done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.startswith(f"shmtree: {said}")


def test_ls_escapes_characters_that_the_encoding_lacks(monkeypatch):
    _ends = shmtree.create_pair(name="m\xfcller")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run_main("ls")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\t")[0] == "m\\xfcller"


def test_ls_without_names_prints_nothing():
    done = run_main("ls")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_error_of_a_full_disk_names_the_file():
    _ends = shmtree.create_pair(name="samples")
    done = run_main("trace", "samples", "--seconds", "0", "--out", "/dev/full")
    assert (done.returncode, done.stderr) == (1, "shmtree: [Errno 28] No space left on device: '/dev/full'\n")


def test_error_is_one_line_if_a_name_has_line_breaks(tmp_path):
    done = run_main("save", "a\nb", "--out", str(tmp_path / "saved"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("shmtree: no ") and "a\\nb" in done.stderr


def test_interrupt_of_the_first_imports_prints_no_traceback(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    done = run_main("ls")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_full_standard_error_keeps_the_exit_code_of_run():
    shell = ["sh", "-c", '"$@" 2>/dev/full', "sh", sys.executable, "-m", "shmtree", "run", "-c", "raise SystemExit(7)"]
    assert subprocess.run(shell, timeout=120, check=False).returncode == 7
