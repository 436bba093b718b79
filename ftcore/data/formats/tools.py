"""Tool definitions and calls in the one form that chat templates take. Own keys and nulls of a row stay exactly as they are."""

from __future__ import annotations

import json
from typing import Any

from ftcore.data.formats.values import check_nested, each_of, kind, parsed, unpacked
from ftcore.spec.errors import DataError

Calls = list[dict[str, Any]]
_TOOL_FIX = 'a tool is {"type": "function", "function": {"name": ..., "parameters": ...}}, or what stands under "function" alone'
_CALL_FIX = 'a call is {"name": ..., "arguments": {...}}, also under "function"'


def tool_definitions(value: Any, name: str) -> list[dict[str, Any]] | None:
    """The tools of a row, each {"type": "function", "function": {...}}; None when there are none.

    `value` is a list, one tool, or either as JSON text; a tool may come without the wrapper. Raises DataError naming each that is no tool.
    """
    if isinstance(value, str):
        value = parsed(value, name) if value.strip() else None
    if value is None or value == []:
        return None
    tools = [value] if isinstance(value, dict) and value.keys() & {"name", "function"} else value
    if not isinstance(tools, list):
        raise DataError(f"{name} is {kind(value)}", fix=f"a list of tools; {_TOOL_FIX}")
    check_nested(tools, name)
    return each_of(tools, name, _definition)


def _definition(tool: Any, name: str) -> dict[str, Any]:
    tool = unpacked(tool, name)
    if not isinstance(tool, dict):
        raise DataError(f"{name} is {kind(tool)}", fix=_TOOL_FIX)
    function = tool.get("function")
    if function is None:
        function = tool
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        of_type = f" of type {tool['type']!r}" if isinstance(tool.get("type"), str) and tool["type"] != "function" else ""
        raise DataError(f"{name} is a tool{of_type} without the name of a function", fix=_TOOL_FIX)
    return tool if function is not tool else {"type": "function", "function": _without_wrapper_keys(tool)}


def _without_wrapper_keys(tool: dict[str, Any]) -> dict[str, Any]:
    # {"type": "function", "name": ..., "parameters": ...}: the newer flat form.
    return {key: value for key, value in tool.items() if not (key == "type" and value == "function") and not (key == "function" and value is None)}


def tool_calls(value: Any, name: str) -> Calls:
    """The calls of an assistant's message: a list, or one call; arguments that are JSON text become the object they hold.

    Raises DataError naming each that is no call.
    """
    calls = [value] if isinstance(value, dict) else value
    if not isinstance(calls, list):
        raise DataError(f"{name} is {kind(value)}", fix=f"a list of calls; {_CALL_FIX}")
    return each_of(calls, name, _call)


def calls_of_text(value: Any, name: str) -> Calls:
    """The calls that the value of a function_call turn holds: JSON text, or what such text would hold. Raises DataError as `tool_calls`."""
    calls = tool_calls(parsed(value, name) if isinstance(value, str) else value, name)
    if not calls:
        raise DataError(f"{name} holds no call", fix=_CALL_FIX)
    return calls


def with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as JSON text: for templates that take nothing else."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def _call(call: Any, name: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise DataError(f"{name} is {kind(call)}", fix=_CALL_FIX)
    inner = call.get("function")
    function = call if inner is None or isinstance(inner, str) else inner
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DataError(f"{name} has no name of a function", fix=_CALL_FIX)
    filled = {**function, "arguments": _arguments(function.get("arguments"), f"{name}.arguments")}
    check_nested(filled, name)
    if function is not call:
        return {**call, "function": filled}
    # The id is the call's, not the function's: what a tool's message answers.
    of_call = {"id": filled.pop("id")} if "id" in filled else {}
    return {**of_call, "type": "function", "function": {key: value for key, value in filled.items() if (key, value) != ("type", "function")}}


def _arguments(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, str):
        value = parsed(value, name) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DataError(f"{name} is {kind(value)}", fix="an object, or its JSON text")
    return value
