"""Runs a program from standard input as somebody pastes it at a prompt of Python, line by line.

There an empty line ends a function or a loop, and a line that does not belong to it any more is a
syntax error without one. It ends with 1 at the first error.
"""

from __future__ import annotations

import code
import sys


class Prompt(code.InteractiveConsole):
    """A prompt that ends at an error, and writes no prompts."""

    def showtraceback(self) -> None:
        """Write it, and end."""
        super().showtraceback()
        sys.exit(1)

    def showsyntaxerror(self, *args: object, **kwargs: object) -> None:
        """Write it with the lines so far, and end."""
        super().showsyntaxerror(*args, **kwargs)  # type: ignore[arg-type]
        sys.stderr.write("\n".join(self.buffer))
        sys.exit(1)


def main() -> None:
    """Run it."""
    prompt = Prompt(locals={"__name__": "__main__"}, filename="<prompt>")
    waits = False
    for line in sys.stdin.read().splitlines():
        waits = prompt.push(line)
    if waits:
        # the return that ends what was pasted
        waits = prompt.push("")
    if waits:
        sys.exit("the block ends within a statement")


if __name__ == "__main__":
    main()
