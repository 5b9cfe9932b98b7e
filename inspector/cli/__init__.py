"""The `kvscope` command: the table of its commands, and `main`.

A command is one module of this folder and one line of `COMMANDS`. Modules import nothing heavy before their command
runs. Exit codes: 0 good, 1 findings, 2 bad usage or input, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

# name -> module of this folder : its function, or its Typer app for a command with commands of its own.
# The order is that of `kvscope --help`.
COMMANDS = {
    "demo": "demo:demo",
    "generate": "generate:generate",
    "serve": "serve:serve",
    "simulate": "simulate:simulate",
    "plan": "plan:app",
    "doctor": "doctor:doctor",
    "compare": "compare:compare",
    "inspect": "inspect:inspect",
    "check": "check:check",
    "explain": "explain:explain",
    "dashboard": "dashboard:dashboard",
    "top": "top:top",
    "query": "query:query",
    "export": "export:export",
    "import": "import_:import_file",
    "pack": "pack:pack",
    "unpack": "pack:unpack",
    "models": "models:app",
    "fuzz": "fuzz:fuzz",
    "faults": "faults:app",
    "races": "races:races",
    "samples": "samples:samples",
    "bench": "bench:bench",
}


_MAY_BE_EMPTY = ("--user", "--system")  # options whose text may be; prompts of `generate` say themselves what they want
BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended


def build() -> typer.Typer:
    """The app with every command of the table."""
    from importlib import import_module

    import typer

    app = typer.Typer(
        name="kvscope", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip

    def version(wanted: bool) -> None:
        if wanted:
            from kvscope import __version__
            from kvscope.traces import compiled

            typer.echo(f"kvscope {__version__}, recording in {compiled.way()}")
            raise typer.Exit

    @app.callback()
    def kvscope(
        version: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Print the version."),
    ) -> None:
        """See, replay and debug the memory of paged LLM engines."""

    for name, place in COMMANDS.items():
        module, attribute = place.split(":")
        home = import_module(f"kvscope.inspector.cli.{module}")
        command: Any = getattr(home, attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, context_settings=getattr(home, "CONTEXT", None))(command)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line; every error is one line on standard error. Returns the exit code."""
    from kvscope.errors import KVScopeError, Sanitized

    try:
        import typer

        command = typer.main.get_command(build())
        _refuse_empty_names(command, arguments)
        status = command.main(list(arguments), "kvscope", standalone_mode=False)
        if status == 130:
            return _interrupted()
        return status if isinstance(status, int) else 0
    except Sanitized as error:  # a finding, not a failure
        return _fail(str(error), 1)
    except KVScopeError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit:  # how Click ends when nobody reads our output any more
        return BROKEN_PIPE
    except BrokenPipeError:
        return BROKEN_PIPE
    except OSError as error:
        if error.filename:
            return _fail(f"{error.filename}: {error.strerror}")
        return _output_is_lost(error)
    except Exception as error:  # a usage error's class depends on the Typer version: known by what it offers
        if type(error).__name__ == "Abort":
            return _interrupted()
        if not hasattr(error, "format_message"):
            raise
        return _usage(error)


def main() -> None:
    """Entry point of the console command."""
    # Read by OpenMP when torch is loaded: threads that wait give their core away. Without it two threads on one free
    # core take ten times as long as one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: what is written there is not wanted
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    status = run(sys.argv[1:])
    sys.exit(_output_is_lost() or status)


def _output_is_lost(error: OSError | None = None) -> int:
    """Exit code where what was written cannot reach standard output, and the line that says why; 0 where it can.

    Args:
        error: what a write without a name has failed with: files of ours are named when they do.
    """
    try:
        sys.stdout.flush()
    except OSError as last:
        error = last
    if error is None:
        return 0
    # What is still in the buffer would be tried, and complained about, once more at the very end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    lost = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
    return _fail(("cannot write standard output: " if lost else "") + (error.strerror or str(error)))


def _refuse_empty_names(command: Any, arguments: Sequence[str]) -> None:
    """An empty argument, as an unset variable of a shell leaves it, is no name; as a path it would be this folder.

    Raises:
        UsageError: there is one, where text may not be empty.
    """
    from kvscope.errors import UsageError

    for at, given in enumerate(arguments):
        option, equals, value = given.partition("=") if given.startswith("--") else ("", "", given)
        if value or (option and not equals):
            continue
        before = arguments[at - 1] if at else ""
        option = option or (before if before.startswith("-") else "")
        if option in _MAY_BE_EMPTY or (not option and arguments[0] == "generate" and at > 1):
            continue
        raise UsageError(f"{option or _arguments_of(command, arguments[0])} is empty: give a name")


def _arguments_of(command: Any, name: str) -> str:
    """How the help calls the arguments of a command."""
    params = getattr(getattr(command, "commands", {}).get(name), "params", ())
    found = [str(param.metavar or param.name.upper()) for param in params if not param.opts[0].startswith("-")]
    return " or ".join(dict.fromkeys(found)) or "an argument"


def _fail(message: str, code: int = 2) -> int:
    sys.stderr.write(f"kvscope: error: {' '.join(message.split())}\n")
    return code


def _interrupted() -> int:
    sys.stderr.write("kvscope: interrupted\n")
    return 130


def _usage(error: Any) -> int:
    message = error.format_message()
    if not message or type(error).__name__ == "NoArgsIsHelpError":  # the help text was the answer
        if message:
            sys.stdout.write(message + "\n")
        return 2
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context is not None else ""
    return _fail(message.rstrip(".") + where)
