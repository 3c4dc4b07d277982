"""`pyrometer completion SHELL`: what a shell needs to complete commands, options and choices, by click's own means."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from pyrometer.cli import COMMANDS, COMPLETE

SHELLS = ("bash", "zsh", "fish")
_NOTE = {  # where the text goes, so that new shells have it
    "bash": "pyrometer completion bash > ~/.local/share/bash-completion/completions/pyrometer",
    "zsh": "pyrometer completion zsh > ~/.zfunc/_pyrometer",
    "fish": "pyrometer completion fish > ~/.config/fish/completions/pyrometer.fish",
}


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """What a shell needs to complete pyrometer's commands and options: eval "$(pyrometer completion bash)"."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"click knows no completion for {shell}.")
    # click asks bash for its version before it writes the text; whoever writes it elsewhere may have none
    click.echo(kind.source_template % kind(_Commands(), {}, "pyrometer", COMPLETE).source_vars())
    click.echo(f"# For new shells, too: {_NOTE[shell]}")  # last: zsh reads its first line


def complete(instruction: str) -> int:
    """Answers a shell that asks how a line goes on."""
    return shell_complete(_Commands(), {}, "pyrometer", COMPLETE, instruction)


class _Commands(click.Group):
    """All commands, of which only the one on the line is loaded."""

    def __init__(self) -> None:
        super().__init__("pyrometer")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"pyrometer.cli.{COMMANDS[cmd_name].module}")
        if isinstance(module.command, click.Command):
            return module.command
        return click.Command(cmd_name, params=list(_options_of(module)))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(name, help=listed.help) for name, listed in COMMANDS.items() if name.startswith(incomplete)
        ]


def _options_of(module: object) -> Iterator[click.Parameter]:
    """The options of `run`, which does without click."""
    for action in module.parser()._actions:  # type: ignore[attr-defined]
        if action.option_strings:
            kind = click.Path() if action.metavar == "DIR" else None
            yield click.Option(action.option_strings, type=kind, is_flag=action.nargs == 0, help=action.help)
        else:
            yield click.Argument([action.dest], nargs=-1, type=click.Path())
