"""Write instructions from the failures of tests. From level 2 on they name no changed file."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.task_generation.mutation.edits import functions_of, parse_source
from farm.task_generation.mutation.fault_choice import Fault
from farm.task_generation.mutation.operators import REMOVED_METHOD
from farm.task_generation.wording.failing_statement import Example
from farm.task_generation.wording.failure_examples import best_examples

LEVELS = (1, 2, 3)
"""1 names the file and the symptom, 2 the function and not the file, 3 only the symptom."""
_EXAMPLES_BY_LEVEL = {1: 3, 2: 3, 3: 4}
_MAX_SUMMARY_CHARS = 200
_CLOSING = "Everything else is to go on working as it does. The tests that judge the work are not in the repository."


@dataclass(frozen=True, slots=True)
class Symptom:
    """A fault with examples of its failures."""

    fault: Fault
    examples: tuple[Example, ...]


def write_instruction(
    package: str, symptoms: Sequence[Symptom], sources: Mapping[str, bytes], level: int, *, feature: bool
) -> str | None:
    """Return the text, or None if a fault has no examples or the text would name a changed file from level 2 on."""
    paths = [symptom.fault.path for symptom in symptoms]
    avoid = [stem for path in paths if (stem := _stem(path)) not in (package, "__init__")]
    parts = [_heading(package, symptoms, feature)]
    if level == 3:
        parts.append(
            f"Users of `{package}` report what is wrong with it:" if not feature else _missing_opening(package)
        )
    for symptom in symptoms:
        examples = best_examples(symptom.examples, _EXAMPLES_BY_LEVEL[level], avoid if level > 1 else ())
        if not examples:
            return None
        if level < 3:
            parts.append(_opening(symptom.fault, sources[symptom.fault.path], level, feature))
        parts.append("\n".join(f"- {example.text}" for example in examples))
    parts.append(("Write what is missing. " if feature else "Find the cause and mend it. ") + _CLOSING)
    text = "\n\n".join(parts) + "\n"
    if level > 1 and names_a_file(text, paths):
        return None
    return text


def names_a_file(text: str, paths: Sequence[str]) -> bool:
    """Return whether the text holds one of the paths, or the name of one of the files."""
    return any(path in text or path.rpartition("/")[2] in text for path in paths)


def _heading(package: str, symptoms: Sequence[Symptom], feature: bool) -> str:
    if feature:
        return f"# `{package}`: a feature is missing"
    count = len(symptoms)
    return f"# `{package}`: " + ("a fault" if count == 1 else f"{count} faults")


def _missing_opening(package: str) -> str:
    return f"Something of `{package}` is not there any more, and is to work as it did:"


def _opening(fault: Fault, source: bytes, level: int, feature: bool) -> str:
    name = f"`{fault.function}`"
    location = f" in `{fault.path}`" if level == 1 else ""
    summary = _summary(source, fault.function)
    note = f" ({summary})" if summary else ""
    if feature:
        return f"{name}{location}{note} has no body. It is to do this, for example:"
    if fault.operator == REMOVED_METHOD:
        return f"{name}{note} is missing{location}:"
    return f"{name}{location}{note} does not do what it should:"


def _summary(source: bytes, function: str) -> str:
    """Return the first sentence of the function's docstring in quotes, or an empty text."""
    tree = parse_source(source)
    for name, node in functions_of(tree) if tree is not None else ():
        if name == function:
            text = ast.get_docstring(node) or ""
            first = " ".join(text.partition("\n\n")[0].split())
            first = first.partition(". ")[0].rstrip(".")
            return f'"{first}"' if 0 < len(first) <= _MAX_SUMMARY_CHARS else ""
    return ""


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")
