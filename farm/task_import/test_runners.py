"""Test runners for repositories whose own runner writes no report: they run the same tests and write JUnit XML.

They are put into the workspace with the tests and run by the image's Python, of any version.
"""

from collections.abc import Mapping

DJANGO_COMMAND = "FARM_REPORT={report} ./tests/runtests.py --verbosity 1 --settings=farm_django --parallel 1"
SYMPY_COMMAND = (
    "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' PYTHONHASHSEED=0 python farm_sympy.py {report}"
)
SYMPY_CLASS = "sympy"
"""The class name of all sympy tests, whose ids are names alone. Of two tests with one name the worse outcome counts."""

_JUNIT = """\
import os
import sys
import traceback
import xml.etree.ElementTree as ElementTree


class Report:
    def __init__(self):
        self.root = ElementTree.Element("testsuites")
        self.suite = ElementTree.SubElement(self.root, "testsuite")
        self.cases = {}

    def note(self, classname, name, child=""):
        key = (classname, name)
        if key not in self.cases:
            self.cases[key] = ElementTree.SubElement(self.suite, "testcase", classname=classname, name=name)
        if child:
            ElementTree.SubElement(self.cases[key], child)

    def write(self, path):
        if not os.path.isdir(os.path.dirname(path)):
            os.makedirs(os.path.dirname(path))
        ElementTree.ElementTree(self.root).write(path, encoding="utf-8", xml_declaration=True)
"""

_DJANGO_SETTINGS = "from test_sqlite import *\n\nTEST_RUNNER = 'farm_django_runner.Runner'\n"

_DJANGO_RUNNER = (
    _JUNIT
    + """

import unittest

from django.test.runner import DiscoverRunner


class Result(unittest.TextTestResult):
    def __init__(self, *arguments, **options):
        super(Result, self).__init__(*arguments, **options)
        self.report = Report()

    def told(self, test, child=""):
        classname, _, name = test.id().rpartition(".")
        self.report.note(classname, name, child)

    def addSuccess(self, test):
        super(Result, self).addSuccess(test)
        self.told(test)

    def addFailure(self, test, err):
        super(Result, self).addFailure(test, err)
        self.told(test, "failure")

    def addError(self, test, err):
        super(Result, self).addError(test, err)
        self.told(test, "error")

    def addSkip(self, test, reason):
        super(Result, self).addSkip(test, reason)
        self.told(test, "skipped")

    def addExpectedFailure(self, test, err):
        super(Result, self).addExpectedFailure(test, err)
        self.told(test, "skipped")

    def addUnexpectedSuccess(self, test):
        super(Result, self).addUnexpectedSuccess(test)
        self.told(test, "failure")

    def addSubTest(self, test, subtest, err):
        super(Result, self).addSubTest(test, subtest, err)
        if err is not None:
            self.told(test, "failure")

    def stopTestRun(self):
        super(Result, self).stopTestRun()
        self.report.write(os.environ["FARM_REPORT"])


class Runner(DiscoverRunner):
    def get_resultclass(self):
        return Result
"""
)

_SYMPY_RUNNER = (
    _JUNIT
    + """

OUTCOMES = {"Skipped": "skipped", "XFail": "skipped", "XPass": "failure", "AssertionError": "failure"}


def run(path, report):
    scope = {"__file__": path, "__name__": os.path.splitext(os.path.basename(path))[0]}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), scope)
    if scope.get("disabled", False):
        return
    for name, test in list(scope.items()):
        # As bin/test picks them: functions of this very file.
        if not name.startswith("test_") or not callable(test) or getattr(test, "__module__", None) != scope["__name__"]:
            continue
        try:
            test()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            traceback.print_exc()
            report.note("sympy", name, OUTCOMES.get(type(error).__name__, "error"))
        else:
            report.note("sympy", name)


sys.path.insert(0, os.getcwd())
report = Report()
for path in sys.argv[2:]:
    try:
        run(path, report)
    except Exception:
        traceback.print_exc()
report.write(sys.argv[1])
"""
)

DJANGO: Mapping[str, bytes] = {
    "tests/farm_django.py": _DJANGO_SETTINGS.encode(),
    "tests/farm_django_runner.py": _DJANGO_RUNNER.encode(),
}
SYMPY: Mapping[str, bytes] = {"farm_sympy.py": _SYMPY_RUNNER.encode()}
