"""`ftlaunch config-schema`: the JSON Schema of a spec, for editors."""

from __future__ import annotations

import json

import click

from launcher.commands.launch import say


class ConfigSchemaCommand(click.Command):
    """Calls `run`."""

    def invoke(self, ctx: click.Context) -> None:
        """Prints the schema."""
        run()


command = ConfigSchemaCommand(
    "config-schema",
    short_help="Print the JSON Schema of a spec, for editors.",
    help="Print the JSON Schema (draft 2020-12) of a spec. With `ftlaunch config-schema > ftlaunch.schema.json` and a first line "
    "`# yaml-language-server: $schema=ftlaunch.schema.json`, editors complete and check the YAML.",
)


def run() -> None:
    """Prints the schema."""
    from launcher.editor_schema import editor_schema
    from launcher.schema_check import SPEC_SCHEMA, load_schema

    say(json.dumps(editor_schema(load_schema(SPEC_SCHEMA)), indent=2, ensure_ascii=False))
