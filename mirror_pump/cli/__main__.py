"""The program's entry: whatever happens, also while it is being loaded, is said in one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line of this process, and exit."""
    code = 1
    try:
        from mirror_pump.telemetry import install_hooks

        install_hooks()
        from mirror_pump.cli.main import app

        app(prog_name="mirror-pump")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:
        code = 130
        _say("interrupted")
    except BaseException as error:  # noqa: BLE001 - a broken installation, most likely: nothing else gets this far
        _say(f"{type(error).__name__}: {error}", error)
    finally:
        # It is done: a Ctrl-C now is no business of half-closed modules, and changes no exit code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _say(text: str, error: BaseException | None = None) -> None:
    """As mirror_pump.cli.terminal.output.remark, which may be what cannot be loaded."""
    import json
    import traceback

    shown = "".join(traceback.format_exception(error)) if error is not None else ""
    if sys.stderr.isatty():
        line = f"{shown}mirror-pump: {text}"
    else:
        fields = {"event": text, "level": "error" if error else "info"}
        line = json.dumps(fields | ({"exception": shown} if shown else {}))
    os.write(2, f"{line}\n".encode())


if __name__ == "__main__":
    main()
