"""`pyrometer completion SHELL`: shell completion of commands, options and choices, made by click."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from pyrometer.cli import COMMANDS, COMPLETE

SHELLS = ("bash", "zsh", "fish")
_INSTALL = {  # how to enable completion in new shells
    "bash": "pyrometer completion bash > ~/.local/share/bash-completion/completions/pyrometer",
    "zsh": "pyrometer completion zsh > ~/.zfunc/_pyrometer",
    "fish": "pyrometer completion fish > ~/.config/fish/completions/pyrometer.fish",
}


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Prints a script that completes commands and options. Enable it with eval "$(pyrometer completion bash)"."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"click has no completion for {shell}.")
    # not click's `source`: it runs bash to check its version, and bash may be missing here
    click.echo(kind.source_template % kind(_Commands(), {}, "pyrometer", COMPLETE).source_vars())
    click.echo(f"# To enable it in new shells: {_INSTALL[shell]}")  # last, since zsh reads the first line


def complete(instruction: str) -> int:
    """Answers a shell that completes a line."""
    return shell_complete(_Commands(), {}, "pyrometer", COMPLETE, instruction)


class _Commands(click.Group):
    """All commands. Only the command on the line is loaded."""

    def __init__(self) -> None:
        super().__init__("pyrometer")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"pyrometer.cli.commands.{COMMANDS[cmd_name].module}")
        if isinstance(module.command, click.Command):
            return module.command
        return click.Command(cmd_name, params=list(_options_of(module)))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(name, help=listed.help) for name, listed in COMMANDS.items() if name.startswith(incomplete)
        ]


def _options_of(module: object) -> Iterator[click.Parameter]:
    """The options of `run`, which uses argparse instead of click."""
    for action in module.parser()._actions:  # type: ignore[attr-defined]
        if action.option_strings:
            kind = click.Path() if action.metavar == "DIR" else None
            yield click.Option(action.option_strings, type=kind, is_flag=action.nargs == 0, help=action.help)
        else:
            yield click.Argument([action.dest], nargs=-1, type=click.Path())
