"""Instructions without a model: from how tests fail. From level 2 on no changed file is named."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.task_generation.mutation.edits import functions_of, parsed
from farm.task_generation.mutation.faults import Fault
from farm.task_generation.mutation.operators import REMOVED_METHOD
from farm.task_generation.wording.failing_statement import Example
from farm.task_generation.wording.failure_examples import best

LEVELS = (1, 2, 3)
"""1 names file and symptom; 2 the function, not the file; 3 only what is seen from outside."""
_EXAMPLES = {1: 3, 2: 3, 3: 4}
_LONGEST_SUMMARY = 200
_KEEP = "Everything else is to go on working as it does. The tests that judge the work are not in the repository."


@dataclass(frozen=True, slots=True)
class Symptom:
    """A fault, and what tests show of it."""

    fault: Fault
    examples: tuple[Example, ...]


def instruction(
    package: str, symptoms: Sequence[Symptom], sources: Mapping[str, bytes], level: int, *, feature: bool
) -> str | None:
    """None where there is nothing to tell, or it cannot be told without naming a changed file."""
    paths = [symptom.fault.path for symptom in symptoms]
    avoid = [stem for path in paths if (stem := _stem(path)) not in (package, "__init__")]
    parts = [_heading(package, symptoms, feature)]
    if level == 3:
        parts.append(f"Users of `{package}` report what is wrong with it:" if not feature else _asked(package))
    for symptom in symptoms:
        shown = best(symptom.examples, _EXAMPLES[level], avoid if level > 1 else ())
        if not shown:
            return None
        if level < 3:
            parts.append(_about(symptom.fault, sources[symptom.fault.path], level, feature))
        parts.append("\n".join(f"- {example.text}" for example in shown))
    parts.append(("Write what is missing. " if feature else "Find the cause and mend it. ") + _KEEP)
    text = "\n\n".join(parts) + "\n"
    if level > 1 and names_a_file(text, paths):
        return None
    return text


def names_a_file(text: str, paths: Sequence[str]) -> bool:
    """Whether a path, or the name of the file, stands in it."""
    return any(path in text or path.rpartition("/")[2] in text for path in paths)


def _heading(package: str, symptoms: Sequence[Symptom], feature: bool) -> str:
    if feature:
        return f"# `{package}`: a feature is missing"
    count = len(symptoms)
    return f"# `{package}`: " + ("a fault" if count == 1 else f"{count} faults")


def _asked(package: str) -> str:
    return f"Something of `{package}` is not there any more, and is to work as it did:"


def _about(fault: Fault, source: bytes, level: int, feature: bool) -> str:
    name = f"`{fault.function}`"
    where = f" in `{fault.path}`" if level == 1 else ""
    summary = _summary(source, fault.function)
    says = f" ({summary})" if summary else ""
    if feature:
        return f"{name}{where}{says} has no body. It is to do this, for example:"
    if fault.operator == REMOVED_METHOD:
        return f"{name}{says} is missing{where}:"
    return f"{name}{where}{says} does not do what it should:"


def _summary(source: bytes, function: str) -> str:
    """The first sentence of the docstring."""
    tree = parsed(source)
    for name, node in functions_of(tree) if tree is not None else ():
        if name == function:
            text = ast.get_docstring(node) or ""
            first = " ".join(text.partition("\n\n")[0].split())
            first = first.partition(". ")[0].rstrip(".")
            return f'"{first}"' if 0 < len(first) <= _LONGEST_SUMMARY else ""
    return ""


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")
