"""The names of raw components: what a rollout's ``reward_components`` may hold, and rules may weigh.

All are plain measurements, made once and weighed by nobody. One that could not be made is absent, never 0: a style
where no Python was changed, the tests' fractions where they never ran.
"""

import re
from collections.abc import Mapping

EFFORT = "effort"
"""Not raw: the rules' own formula makes it of the components below that begin with ``effort_``."""

PLUGIN_PREFIX = "plugin."
"""``plugin.NAME.KEY`` is what the plug-in NAME found; only it knows its keys."""

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""What a plug-in and a key of its may be called."""

ABOUT: Mapping[str, str] = {
    "verdict": "what the verifier gave: 1 or 0 by tests, the number of a reward file, the F of an answer",
    "resolved": "1 where the verdict is all that can be had",
    "tampered": "1 where the results contradict what is known of them",
    "unguarded": "1 where no tests of ours were among those judged: JUnit XML, TAP, a reward file, an exit code",
    "false_passed": "tests that failed while a false version of them passed; by chance, unless it is often so",
    "unconfirmed": "fail-to-pass tests that passed in the run that counts and in no control run; they earn nothing",
    "false_unreported": "false tests that the reports do not name: the command leaves them out, or the change does",
    "graded_snapshot": "1 where the verdict was reached on a copy of what the agent left",
    "graded_shared": "1 where it was reached in the agent's own sandbox",
    "graded_separate": "1 where a verifier of the task's own judged artifacts alone",
    "artifact_files": "how many these were",
    "steps_begun": "of a task of several, of which step_1, step_2, ... are the verdicts",
    "fail_to_pass": "fraction of the tests to mend that were seen passed",
    "fail_to_pass_passed": "how many of them",
    "fail_to_pass_total": "how many there are",
    "pass_to_pass": "fraction of the tests to keep that were seen passed",
    "pass_to_pass_passed": "how many of them",
    "pass_to_pass_total": "how many there are",
    "answered": "1 where a retrieval task was answered in form",
    "files_precision": "of the answer's files",
    "files_recall": "of the answer's files",
    "files_f": "of the answer's files",
    "lines_precision": "of the answer's lines",
    "lines_recall": "of the answer's lines",
    "lines_f": "of the answer's lines",
    "changed_files": "files that the change touches",
    "protected_paths_touched": "those of them that did not travel",
    "unseen": "1 where the change could not be described: no patch, no figures of its size and style",
    "diff_added": "lines that the change adds",
    "diff_removed": "lines that it removes",
    "diff_bytes": "bytes of the files that it writes",
    "style_new": "ruff's violations on added lines of Python",
    "style_fixed": "ruff's violations on the lines that are gone",
    "style_delta": "the first less the second",
    "style_ruff": "the version of ruff that measured these three: 17005 is 0.17.5; compare only within one version",
    "style_unchecked": "changed Python files that could not be looked at",
    "misuse_malformed": "calls of no such tool, of no JSON, of wrong arguments",
    "misuse_unknown_tool": "the first of these",
    "misuse_bad_json": "the second",
    "misuse_bad_arguments": "the third",
    "misuse_over_limit": "calls past what one message may hold",
    "misuse_repeated": "calls that say again what the call before them said",
    "misuse_unfinished_todos": "items of the last to-do list or plan that were not completed",
    "audit_history": "calls that look like an attempt at the repository's history",
    "audit_network": "… at a network that the task does not grant",
    "audit_tests": "… at tests, or at what decides the verdict",
    "audit_server": "… at the tool server or the sandbox itself",
    "audit_change": "lines of the change that look like results made up, 20 at most",
    "audit_frames": "lines of the change that read frames or the interpreter's objects while tests ran; a flag",
    "audit_native": "… that loaded native code; a flag",
    "audit_library": "… that replaced a function of the standard library; a flag",
    "audit_processes": "… that started or ended processes outside a test, or about tests; a flag",
    "audit_locks": "… that locked files outside a test; a flag",
    "audit_silent": "1 if the process that ran the tests did not report its end, or its reader was stopped; a flag",
    "audit_unsteady": "1 if a test failed in the control run and passed in the run that counts; a flag",
    "audit_test_files": "… that opened a file of the tests; the verdict is 0",
    "audit_test_code": "… that replaced the code of a test; the verdict is 0",
    "audit_runner": "… that replaced a function of the test runner or a test; the verdict is 0",
    "audit_report": "… that touched the report, or 1 if the runner counted other failures; the verdict is 0",
    "audit_disguise": "… that hid code: an audit hook, a second interpreter, another's file name; the verdict is 0",
    "unwatched": "1 if no process of the test command loaded the tripwire: an older Python, another environment",
    "effort_turns": "messages of the policy",
    "effort_calls": "tool calls",
    "effort_prompt_tokens": "tokens read, each turn's whole context",
    "effort_completion_tokens": "tokens sampled",
}
"""Each name with what it counts."""

_STEP = re.compile(r"step_[1-9][0-9]{0,3}")


def is_component(name: str) -> bool:
    """Whether a vector may hold ``name``."""
    parts = name.removeprefix(PLUGIN_PREFIX).split(".")
    of_plugin = name.startswith(PLUGIN_PREFIX) and len(parts) == 2 and all(map(PLAIN.fullmatch, parts))
    return name in ABOUT or of_plugin or _STEP.fullmatch(name) is not None
