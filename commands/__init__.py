"""The commands, one file a command or group: options -> one library call -> printed -> exit code.

What a command needs is imported inside it, so that `--help` is quick; `replicast.cli` loads a
command's file only when it is asked for. `*_answer.py` stand between a command and the library
where an answer takes several calls; they know no click.
"""

ASKED = "replicast.asked"  # key of `click.Context.meta`: the command line as it was typed
