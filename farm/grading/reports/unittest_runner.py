"""Runs the unittest tests of files and writes JUnit XML: ``unittest_runner.py REPORT FILE...``

Runs in the workspace of a grading sandbox, with the standard library of any Python from 3.6 on. As in pytest's reports,
a test's class name begins with the path of its file.
"""

import os
import sys
import traceback
import types
import unittest
from typing import Any, Dict, Optional  # noqa: UP035 - for the older ones
from xml.etree import ElementTree


class RecordingResult(unittest.TestResult):
    def __init__(self, suite: ElementTree.Element) -> None:
        super().__init__()
        self.suite = suite
        self.cases: Dict[str, ElementTree.Element] = {}  # noqa: UP006 - as above

    def add_case(self, test: unittest.TestCase, child: str = "", error: Any = None) -> None:
        module, _, name = test.id().rpartition(".")
        if module.startswith("unittest."):
            return  # unittest's placeholder for a file that cannot be loaded
        if test.id() not in self.cases:
            self.cases[test.id()] = ElementTree.SubElement(self.suite, "testcase", classname=module, name=name)
        if child:
            ElementTree.SubElement(self.cases[test.id()], child)
        if error is not None:
            sys.stderr.write("".join(traceback.format_exception(*error)))

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.add_case(test)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.add_case(test, "failure", err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.add_case(test, "error", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.add_case(test, "skipped")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.add_case(test, "skipped")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.add_case(test, "failure")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Optional[Any]) -> None:  # noqa: UP045 - as above
        if err is not None:
            self.add_case(test, "failure", err)


def register_package(directory: str) -> None:
    """Register a directory without ``__init__.py`` as a package, so that no installed package takes its name."""
    if directory and not os.path.exists(os.path.join(directory, "__init__.py")):
        register_package(os.path.dirname(directory))
        package = types.ModuleType(directory.replace("/", "."))
        package.__path__ = [os.path.abspath(directory)]
        sys.modules.setdefault(package.__name__, package)


def main(report: str, *files: str) -> None:
    sys.path[0] = os.getcwd()  # instead of the directory of this file
    suites = ElementTree.Element("testsuites")
    result = RecordingResult(ElementTree.SubElement(suites, "testsuite", name="unittest"))
    for file in files:
        register_package(os.path.dirname(file))
        unittest.defaultTestLoader.loadTestsFromName(file[: -len(".py")].replace("/", ".")).run(result)
    ElementTree.ElementTree(suites).write(report)


if __name__ == "__main__":
    main(*sys.argv[1:])
