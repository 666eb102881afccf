"""The help of ``farm run`` says what an option does without another page."""

import inspect
from typing import get_args

import pytest
import typer

from farm.cli.runs.run import run


def help_of(option: str) -> str:
    annotation = inspect.signature(run, eval_str=True).parameters[option].annotation
    (found,) = (extra for extra in get_args(annotation) if isinstance(extra, typer.models.OptionInfo))
    return found.help or ""


@pytest.mark.parametrize("reason", ["unfit", "not in it", "changed since", "cannot be loaded"])
def test_only_fit_names_each_kind_of_task_that_it_leaves_out(reason: str) -> None:
    assert reason in help_of("only_fit").partition("Left out")[2]


def test_unvalidated_refers_to_what_only_fit_leaves_out() -> None:
    assert "--only-fit" in help_of("unvalidated")
