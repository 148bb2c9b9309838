"""Mutants of the models (tests/models) still apply to the sources. `./dev models` runs them, with a model checker."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest

SCRIPT = pathlib.Path(__file__).parents[3] / "tools/models.py"
SPEC = importlib.util.spec_from_file_location("models_script", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
models_script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(models_script)

MUTANTS = models_script.read_mutants()
MODELS = {path.stem for path in models_script.MODELS.glob("*.cpp")}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.model}-{i}" for i, mutant in enumerate(MUTANTS)])
def test_mutant_changes_its_source(mutant, tmp_path):
    assert models_script.write_mutant(mutant, tmp_path)


def test_each_model_has_mutants_and_a_description():
    page = (SCRIPT.parents[1] / "CONTRIBUTING.md").read_text()
    assert {mutant.model for mutant in MUTANTS} == MODELS
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) >= MODELS
