"""Calls as policies write them: what is malformed comes back named, and never raises."""

import json
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from sandboxes.errors import SpecError
from sandboxes.interface import Sandbox
from sandboxes.tools import ToolErrorKind, Toolset
from sandboxes.tools.packs.default.bash import BashInput
from sandboxes.tools.packs.default.edit import EditInput
from sandboxes.tools.packs.default.glob import GlobInput
from sandboxes.tools.packs.default.grep import GrepInput
from sandboxes.tools.parse_call import MalformedCall, parse_arguments
from sandboxes.tools.schemas import schema_of

NOWHERE = cast(Sandbox, object())
"""A malformed call never reaches its sandbox."""

EDIT = "str_replace_based_edit_tool"


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "told"),
    [
        ("Bash", "{}", "unknown_tool", 'no tool named "Bash" (did you mean bash?); the tools are: bash, str_'),
        ("\ud800\x1b[31m" + "x" * 9000, "{}", "unknown_tool", "no tool named"),
        ("bash", '{"command": "ls', "bad_json", "line 1, column 13"),
        ("bash", '{"command": "ls"} trailing', "bad_json", "Extra data at line 1, column 19"),
        ("bash", '{"command":\n "a\nb"}', "bad_json", "line 2, column 4"),
        ("bash", '{"command": "ls", "timeout_s": NaN}', "bad_json", "NaN is not JSON"),
        ("bash", "[" * 100_000, "bad_json", "nested too deeply"),
        ("bash", '{"x": ' + "[" * 100 + "]" * 100 + "}", "bad_json", "nested too deeply"),
        ("bash", '{"x": ' + '{"x": ' * 300 + "1" + "}" * 301, "bad_json", "nested too deeply"),
        ("bash", '{"timeout_s": ' + "9" * 5000 + "}", "bad_json", "limit"),
        ("bash", '{"x": "' + "y" * 9_000_000 + '"}', "bad_arguments", "at most 8,388,608"),
        ("bash", '["ls"]', "bad_arguments", "must be a JSON object, not an array"),
        ("bash", '"ls"', "bad_arguments", 'not the string "ls"'),
        ("bash", "", "bad_arguments", '"command" is missing'),
        ("bash", '{"command": null}', "bad_arguments", '"command" is missing'),
        (
            "bash",
            '{"comand": "ls"}',
            "bad_arguments",
            '"comand" is not an argument of this tool (did you mean command?)',
        ),
        ("bash", '{"command": ["ls"]}', "bad_arguments", '"command": expected a valid string, got an array'),
        ("bash", '{"command": "ls", "timeout_s": "5"}', "bad_arguments", 'a valid number, got the string "5"'),
        ("bash", '{"command": "ls", "timeout_s": 0}', "bad_arguments", '"timeout_s": expected greater than 0, got 0'),
        ("bash", '{"command": "ls", "timeout_s": 1e999}', "bad_arguments", "finite"),
        ("bash", '{"command": "ls", "restart": 1}', "bad_arguments", '"restart": expected a valid boolean, got 1'),
        ("bash", '{"command": "\\ud800"}', "bad_arguments", '"command": character 1 is half of a surrogate pair'),
        ("bash", '{"command": "a\\u0000b"}', "bad_arguments", '"command": holds a NUL'),
        ("bash", '{"command": "ls", "kill": true}', "bad_arguments", "kill: only with job"),
        ("bash", '{"command": "ls", "job": 1}', "bad_arguments", "job asks after a command that runs already"),
        ("bash", '{"job": 1, "input": "x", "kill": true}', "bad_arguments", "either input or kill"),
        ("bash", '{"job": 0}', "bad_arguments", '"job": expected greater than or equal to 1, got 0'),
        ("bash", '{"command": "ls", "session": "a b"}', "bad_arguments", '"session"'),
        ("grep", "{}", "bad_arguments", '"pattern" is missing'),
        ("grep", '{"pattern": "x", "output_mode": "lines"}', "bad_arguments", "'content', 'files_with_matches' or"),
        ("grep", '{"pattern": "x", "-A": -1}', "bad_arguments", '"-A": expected greater than or equal to 0, got -1'),
        ("grep", '{"pattern": "x", "after": 1}', "bad_arguments", "it takes: pattern, path, glob, output_mode, -i, -n"),
        (EDIT, '{"command": "delete", "path": "x"}', "bad_arguments", "'view', 'create', 'str_replace' or 'insert'"),
        (EDIT, '{"command": "view"}', "bad_arguments", '"path" is missing'),
        (EDIT, '{"command": "create", "path": "x"}', "bad_arguments", "create needs file_text"),
        (EDIT, '{"command": "str_replace", "path": "x"}', "bad_arguments", "needs new_str and old_str"),
        (EDIT, '{"command": "view", "path": "x", "file_text": ""}', "bad_arguments", "not file_text"),
        (EDIT, '{"command": "view", "path": "x", "view_range": [1]}', "bad_arguments", "at least 2 items"),
        (EDIT, '{"command": "view", "path": ""}', "bad_arguments", '"path"'),
        ("submit", '{"answer": 42}', "bad_arguments", '"answer" is not an argument of this tool'),
    ],
)
async def test_malformed_call_error_names_the_cause(name: str, arguments: str, kind: str, told: str) -> None:
    result = await Toolset.of().call(NOWHERE, name, arguments, timeout_s=1)
    assert result.error_kind == kind
    assert told in result.content
    assert len(result.content.encode()) < 1000
    assert not result.done


@pytest.mark.parametrize(
    ("todo", "told"),
    [
        ({"content": "x", "status": "pending", "odd": 1}, 'error: "todos.0.odd" is not known there'),
        ({str(number): 1 for number in range(700)}, "error: an object has 700 keys; none here takes more than 32"),
    ],
)
async def test_first_wrong_key_in_list_is_named(todo: Any, told: str) -> None:
    """The error comes from the first item; later items are not checked."""
    asked = json.dumps({"todos": [todo] * 500})
    result = await Toolset.of(["claude-code"]).call(NOWHERE, "TodoWrite", asked, timeout_s=1)
    assert result.content.startswith(told)
    assert result.error_kind is ToolErrorKind.BAD_ARGUMENTS


@settings(deadline=None)
@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
async def test_invalid_arguments_return_an_error_result(value: Any) -> None:
    arguments = value if isinstance(value, str) else json.dumps(value)
    result = await Toolset.of().call(NOWHERE, "grep", arguments, timeout_s=1)
    assert result.error_kind in (ToolErrorKind.BAD_JSON, ToolErrorKind.BAD_ARGUMENTS)


keys = st.sampled_from([*EditInput.model_fields, *BashInput.model_fields, "-i", "-A", "pattern", "glob", "odd"])
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=3)


@settings(deadline=None)
@given(st.sampled_from([BashInput, EditInput, GrepInput, GlobInput]), st.dictionaries(keys, values, max_size=4))
def test_any_object_is_parsed_or_refused(model: type[BaseModel], value: dict[str, Any]) -> None:
    try:
        parsed: BaseModel | None = parse_arguments(model, json.dumps(value))
    except MalformedCall:
        parsed = None
    if parsed is not None:
        given = {key: item for key, item in value.items() if item is not None}
        assert {key: item for key, item in parsed.model_dump(by_alias=True).items() if key in given} == given


@settings(deadline=None)
@given(
    st.one_of(
        st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=3).map(json.dumps),
        st.text('{}[]":,.\\/ue1-+09\n\ud800\x00NaIity tru', max_size=12).map('{{"a": {}}}'.format),
    )
)
@example('{"a": ' + "[" * 99 + "]" * 99 + "}")
@example('{"a": 1, "b": 2, "a": "\\ud83d\\ude00"}')
@example('{"a": -0, "b": 1e400, "c": 123456789012345678901234567890}')
def test_json_is_parsed_like_the_standard_library(text: str) -> None:
    class Anything(BaseModel):
        model_config = ConfigDict(extra="allow")

    try:
        given = json.loads(text, parse_constant=int)  # which takes no such word
    except ValueError:
        with pytest.raises(MalformedCall, match="not valid JSON"):
            parse_arguments(Anything, text)
        return
    try:
        parsed = parse_arguments(Anything, text).model_extra
    except MalformedCall as fault:
        assert "surrogate" in str(fault)  # noqa: PT017 - or there is none
    else:
        assert parsed == {key: value for key, value in given.items() if value is not None}


async def test_submit_call_is_done() -> None:
    for arguments in ("", "{}", " "):
        result = await Toolset.of().call(NOWHERE, "submit", arguments, timeout_s=1)
        assert result.done
        assert result.error_kind is None


def test_schemas_have_fixed_names_and_arguments() -> None:
    shapes = {
        schema["function"]["name"]: (
            list(schema["function"]["parameters"]["properties"]),
            schema["function"]["parameters"]["required"],
        )
        for schema in Toolset.of().schemas()
    }
    assert shapes == {
        "bash": (
            ["command", "restart", "timeout_s", "background", "session", "job", "input", "wait_s", "kill"],
            [],
        ),
        EDIT: (
            ["command", "path", "view_range", "file_text", "old_str", "new_str", "insert_line", "insert_text"],
            ["command", "path"],
        ),
        "grep": (
            ["pattern", "path", "glob", "output_mode", "-i", "-n", "-A", "-B", "-C", "head_limit"],
            ["pattern"],
        ),
        "glob": (["pattern", "path"], ["pattern"]),
        "submit": ([], []),
    }


def test_schemas_use_only_widely_supported_keywords() -> None:
    for schema in Toolset.of().schemas():
        assert schema["type"] == "function"
        parameters = schema["function"]["parameters"]
        assert parameters["additionalProperties"] is False
        assert len(schema["function"]["description"]) < 600
        for value in parameters["properties"].values():
            assert isinstance(value["type"], str)
            assert value["description"]
            assert not {"title", "anyOf", "$ref"} & set(value)


def test_schema_is_built_once_and_copied_for_callers() -> None:
    made = []

    class Input(BaseModel):
        paths: list[str] = []

        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            made.append(cls)
            return super().model_json_schema(*args, **options)

    first = schema_of(Input)
    first["properties"]["paths"]["items"]["type"] = "changed"
    assert schema_of(Input)["properties"]["paths"]["items"] == {"type": "string"}
    assert made == [Input]


def test_toolset_orders_tools_and_refuses_invalid_options() -> None:
    assert Toolset.of(["submit", "bash"]).names == ("bash", "submit")
    with pytest.raises(SpecError, match=r"gerp.*did you mean grep"):
        Toolset.of(["gerp"])
    with pytest.raises(SpecError, match="at least 2000"):
        Toolset.of(max_chars=10)
