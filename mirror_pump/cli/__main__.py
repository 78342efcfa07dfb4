"""Entry point of the program. Reports any failure, even one while it is being loaded, in one line and an exit code."""

from __future__ import annotations

import gc
import os
import signal
import sys


def main() -> None:
    """Runs the command line of this process, and exits."""
    # What is imported stays: to look for garbage in it takes a tenth of the time. Commands switch the collector on
    # (mirror_pump.cli.arguments.options).
    gc.disable()
    code = 1
    try:
        from mirror_pump.runtime.telemetry import install_hooks

        install_hooks()
        from mirror_pump.cli.main import app

        app(prog_name="mirror-pump")
    except SystemExit as system_exit:
        code = system_exit.code if isinstance(system_exit.code, int) else 1
    except KeyboardInterrupt:
        code = 130
        _print_error("interrupted")
    except BaseException as error:  # noqa: BLE001 - most likely a broken installation: nothing else gets this far
        _print_error(f"{type(error).__name__}: {error}", error)
    finally:
        # The work is done: a Ctrl-C during shutdown must neither interrupt half-closed modules nor change the exit
        # code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Else the interpreter searches all objects for garbage before it ends: 0.1 s for those of a large command.
        gc.freeze()
    sys.exit(code)


def _print_error(text: str, error: BaseException | None = None) -> None:
    """Like mirror_pump.cli.terminal.output.remark, but without imports, since these may be what fails."""
    import contextlib
    import json
    import traceback

    traceback_text = "".join(traceback.format_exception(error)) if error is not None else ""
    # If that cannot be imported, nothing has been given a secret yet.
    with contextlib.suppress(Exception):
        from mirror_pump.runtime.telemetry import redact

        text, traceback_text = redact(text), redact(traceback_text)
    if sys.stderr.isatty():
        line = f"{traceback_text}mirror-pump: {text}"
    else:
        fields = {"event": text, "level": "error" if error else "info"}
        line = json.dumps(fields | ({"exception": traceback_text} if traceback_text else {}))
    os.write(2, f"{line}\n".encode())


if __name__ == "__main__":
    main()
