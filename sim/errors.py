"""The one error that bad input raises: what is wrong, where, and the way out."""

from __future__ import annotations


class InputError(ValueError):
    """Input that cannot be used; `cli.py` prints it as one message and exits with `exit_code`.

    `where` names the file (and line, where there is one), `remedy` the way out.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        text = f"{where}: {what}" if where else what
        super().__init__(f"{text}\n  {remedy}" if remedy else text)
