"""Checks memory orders with GenMC, a model checker that explores every execution of a few threads.

    tools/models.py [--no-mutants] [MODEL...]

Each model in tests/models runs functions of src in two or three threads; each thread stands for a process. Each line of
tests/models/mutants weakens one memory order of src, and the checker must report a violation.

    GENMC:         the genmc to use; without it, the script builds one
    GENMC_SOURCE:  the git repository to build from (https://github.com/MPI-SWS/genmc.git)
    JOBS:          number of compilers and checkers that run at a time (default: the number of processors)

GenMC is built once, in ~/.cache/shmtree/genmc (XDG_CACHE_HOME), with clang and LLVM of Debian. Exits with 77 (skipped)
if its source cannot be fetched.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple, NoReturn

ROOT = pathlib.Path(__file__).parents[1]
MODELS = ROOT / "tests/models"
WORK = ROOT / "build/models"

VERSION, COMMIT = "v0.10.3", "c26195b"
SOURCE = os.environ.get("GENMC_SOURCE", "https://github.com/MPI-SWS/genmc.git")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "shmtree/genmc"
GENMC = pathlib.Path(os.environ.get("GENMC") or CACHE / VERSION / "genmc")
JOBS = int(os.environ.get("JOBS") or os.cpu_count() or 2)

COMPILER_OPTIONS = (
    "-std=c++20 -O1 -Xclang -disable-llvm-passes -emit-llvm -c "
    "-fno-access-control -fno-threadsafe-statics -fno-strict-aliasing -fno-stack-protector"
).split()
PASSES = "internalize,globaldce,lower-expect,cgscc(inline),function(sroa,simplifycfg,early-cse,dce),globaldce"
PUBLIC = "main,model_copy,model_clear"

MAX_SECONDS = 120  # limit of processor time for a run of the checker; the longest takes about 35 s
RC11_ONLY = {"broadcast", "mixed", "reuse"}  # IMM would take many minutes
VIOLATION = 42  # exit status of GenMC
SKIPPED = 77


class Result(NamedTuple):
    status: int
    executions: str
    seconds: float
    log: pathlib.Path


class Mutant(NamedTuple):
    model: str
    file: str
    edit: str


def fail(text: str, log: pathlib.Path | None = None) -> NoReturn:
    if log is not None:
        lines = log.read_text(errors="replace").splitlines()
        sys.stderr.write("\n".join(lines[:400]) + "\n")
    sys.exit(f"models: {text}")


def llvm_config(option: str) -> str:
    return subprocess.run(["llvm-config", option], check=True, capture_output=True, text=True).stdout.strip()


def build_checker() -> None:
    """Builds GenMC unless the program exists."""
    if os.access(GENMC, os.X_OK):
        return
    print(f"models: building GenMC {VERSION} in {CACHE}", flush=True)
    subprocess.run(["./dev", "need", *"git make g++ autoconf automake libffi-dev".split()], check=True, cwd=ROOT)
    source, log = CACHE / "source", CACHE / "build.log"
    shutil.rmtree(source, ignore_errors=True)
    GENMC.parent.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["git", "clone", "--quiet", SOURCE, source], stdin=subprocess.DEVNULL).returncode != 0:
        print(
            f"models: skipped, because GenMC is not installed and {SOURCE} cannot be cloned.\n"
            f"Set GENMC_SOURCE to a copy of that repository, or GENMC to a genmc {VERSION}."
        )
        sys.exit(SKIPPED)
    llvm = llvm_config("--prefix")
    compilers = [f"--with-clang={llvm}/bin/clang", f"--with-clangxx={llvm}/bin/clang++"]
    with log.open("w") as output:
        for command in (
            ["git", "-c", "advice.detachedHead=false", "checkout", "--quiet", COMMIT],
            ["autoreconf", "--install"],
            ["./configure", "CXXFLAGS=-O1", f"--with-llvm={llvm}", *compilers],
            ["make", f"-j{JOBS}", "genmc"],
        ):
            if subprocess.run(command, cwd=source, stdout=output, stderr=output).returncode != 0:
                fail(f"{' '.join(command)} failed in {source}", log)
    shutil.copy(source / "genmc", GENMC)


def compile_model(model: str, work: pathlib.Path) -> pathlib.Path:
    """Compiles a model to LLVM code with the calls inlined. Files in work/src replace those of src.

    Removes hints to compilers and processors, which the checker does not support.
    """
    work.mkdir(parents=True, exist_ok=True)
    llvm = llvm_config("--prefix")
    code, text, log = work / f"{model}.bc", work / f"{model}.ll", work / f"{model}.compile.log"
    folders = [MODELS / "stand_ins", work / "src", ROOT / "src", ROOT / "include", MODELS]
    compiler = [f"{llvm}/bin/clang++", *COMPILER_OPTIONS, *(f"-I{folder}" for folder in folders)]
    commands = (
        [*compiler, "-o", code, f"tests/models/{model}.cpp"],
        [f"{llvm}/bin/opt", f"-passes={PASSES}", f"-internalize-public-api-list={PUBLIC}", "-S", "-o", text, code],
    )
    with log.open("w") as output:
        for command in commands:
            if subprocess.run(command, cwd=ROOT, stdout=output, stderr=output).returncode != 0:
                fail(f"{model} does not compile", log)
    lines = text.read_text()
    for pattern, by in (
        (r"^@llvm\.(compiler\.)?used = .*\n", ""),
        (r" = external constant i8\*", " = internal constant i8* null"),
        (r'^.*call void asm sideeffect "".*\n', ""),
        (r"^.*call void @llvm\.(prefetch|lifetime|assume|experimental|invariant).*\n", ""),
        (r"^declare void @llvm\.mem.*\n", ""),
        (r"@llvm\.mem(cpy|move)[a-z0-9.]*\(", "@model_copy("),
        (r"@llvm\.memset[a-z0-9.]*\(", "@model_clear("),
    ):
        lines = re.sub(pattern, by, lines, flags=re.MULTILINE)
    text.write_text(lines)
    return text


def run_checker(code: pathlib.Path, memory_model: str) -> Result:
    """Runs the checker. The options disable estimates, and passes that do not terminate or do not support the code."""
    log = code.with_suffix(f".{memory_model}.log")
    limited = ["sh", "-c", f'ulimit -t {MAX_SECONDS} && exec "$@"', "genmc"]
    command = [*limited, GENMC, f"--{memory_model}", "--disable-estimation", "--disable-mm-detector"]
    command += ["--disable-warn-on-unfreed-memory", "--disable-loop-jump-threading", "--disable-load-annotation"]
    command += ["--disable-instruction-caching", "--input-from-bitcode-file", code]
    with log.open("w") as output:
        checker = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, usage = os.wait4(checker.pid, 0)
        checker.returncode = os.waitstatus_to_exitcode(status)
    found = re.search(r"complete executions explored: (\d+)", log.read_text(errors="replace"))
    seconds = usage.ru_utime + usage.ru_stime
    return Result(checker.returncode, found[1] if found else "?", seconds, log)


def explain(result: Result) -> str:
    if result.seconds >= MAX_SECONDS - 1:
        return f"not finished after {MAX_SECONDS} s of processor time, see {result.log}"
    texts = {0: "no violation", VIOLATION: "violation"}
    return f"{texts.get(result.status, f'exit status {result.status}')}, see {result.log}"


def read_mutants() -> list[Mutant]:
    lines = (MODELS / "mutants").read_text().splitlines()
    return [Mutant(*(part.strip() for part in line.split(" | ", 2))) for line in lines if line and line[0] != "#"]


def write_mutant(mutant: Mutant, folder: pathlib.Path) -> bool:
    """Writes the changed file into the folder. Returns False if the edit changes nothing."""
    before = (ROOT / "src" / mutant.file).read_text()
    sed = subprocess.run(["sed", "-e", mutant.edit], input=before, check=True, capture_output=True, text=True)
    changed = folder / mutant.file
    changed.parent.mkdir(parents=True)
    changed.write_text(sed.stdout)
    return sed.stdout != before


def run_mutant(number: int, mutant: Mutant) -> Result:
    work = WORK / f"mutant-{number}"
    shutil.rmtree(work, ignore_errors=True)
    if not write_mutant(mutant, work / "src"):
        fail(f"a mutant of {mutant.model} no longer changes src/{mutant.file}: {mutant.edit}")
    return run_checker(compile_model(mutant.model, work), "rc11")


def main() -> None:
    models = sorted(path.stem for path in MODELS.glob("*.cpp"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-mutants", action="store_true")
    parser.add_argument("models", metavar="MODEL", nargs="*", help=f"{', '.join(models)} (default: all)")
    options = parser.parse_args()
    chosen = options.models or models
    if unknown := set(chosen) - set(models):
        parser.error(f"unknown models {', '.join(sorted(unknown))}; the models are {', '.join(models)}")
    build_checker()
    mutants = [] if options.no_mutants else [mutant for mutant in read_mutants() if mutant.model in chosen]
    failed = []
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        codes = dict(zip(chosen, pool.map(compile_model, chosen, [WORK] * len(chosen)), strict=True))
        runs = {
            (model, order): pool.submit(run_checker, codes[model], order)
            for model in chosen
            for order in ("rc11", "imm")
            if order == "rc11" or model not in RC11_ONLY
        }
        changed = [(mutant, pool.submit(run_mutant, number, mutant)) for number, mutant in enumerate(mutants)]
        print(f"{'model':12} {'executions':>10} {'RC11':>8} {'IMM':>8}  mutants found")
        for model in chosen:
            results = {order: run.result() for (of, order), run in runs.items() if of == model}
            found = [(mutant, run.result()) for mutant, run in changed if mutant.model == model]
            caught = sum(result.status == VIOLATION for _, result in found)
            seconds = [f"{results[order].seconds:6.1f} s" if order in results else "-" for order in ("rc11", "imm")]
            executions = results["rc11"].executions
            print(f"{model:12} {executions:>10} {seconds[0]:>8} {seconds[1]:>8}  {caught} of {len(found)}", flush=True)
            failed += [f"{model}: {explain(result)}" for result in results.values() if result.status != 0]
            failed += [
                f"{model}: mutant not detected: src/{mutant.file} with {mutant.edit}: {explain(result)}"
                for mutant, result in found
                if result.status != VIOLATION
            ]
    for line in failed:
        print(line)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
