"""Command lines that `shmtree run` executes: of Python, or of a command on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence


def command_of(words: Sequence[str]) -> list[str]:
    """Returns the command line for words that could follow `python`. It begins with the path of an executable file.

    Raises:
        ValueError: There is no program.
    """
    count, is_complete = _python_options(words)
    if not is_complete and count == len(words):
        raise ValueError("run needs a program: a script, -m and a module, -c and code, or a command")
    if not is_complete:
        program, is_python = _program(words[count])
        words = [*words[:count], program, *words[count + 1 :]]
        if not is_python and count:
            raise ValueError(f"{words[0]} is an option of Python, and {program} is not a Python program")
        if not is_python:
            return words
    # This private function returns all options of the interpreter, and multiprocessing uses it for the same purpose.
    return [sys.executable, *subprocess._args_from_interpreter_flags(), *words]  # type: ignore[attr-defined]


def _python_options(words: Sequence[str]) -> tuple[int, bool]:
    """Returns the number of words that are options of Python, and True if they name the program."""
    count = 0
    while count < len(words) and words[count].startswith("-") and words[count] != "-":
        word = words[count]
        count += 1 + (word == "--check-hash-based-pycs")
        if word.startswith("--"):
            continue
        for number, letter in enumerate(word[1:], 2):
            if letter in "EIS":
                raise ValueError(f"run needs PYTHONPATH and sitecustomize, which -{letter} turns off")
            if letter in "cm":
                return count, True
            if letter in "WX":  # options with a value
                count += number == len(word)
                break
    return min(count, len(words)), False


def _program(name: str) -> tuple[str, bool]:
    """Returns the path of the program of this name, and True if Python executes it."""
    if os.path.isfile(name):
        interpreter = _interpreter(name)
        return name, not interpreter or "python" in interpreter
    if os.sep in name or os.path.exists(os.path.join(name, "__main__.py")) or not (found := shutil.which(name)):
        return name, True
    interpreter = _interpreter(found)
    is_ours = os.path.dirname(interpreter) == os.path.dirname(sys.executable)
    return found, is_ours and os.path.realpath(interpreter) == os.path.realpath(sys.executable)


def _interpreter(path: str) -> str:
    """Returns the interpreter in the first line of a script, "a binary" for an ELF file, and "" for other files."""
    try:
        with open(path, "rb") as file:
            head = file.readline(4096)
    except OSError:  # the start of the program will report the reason
        return ""
    return "a binary" if head.startswith(b"\x7fELF") else os.fsdecode(head[2:].strip()) if head[:2] == b"#!" else ""
