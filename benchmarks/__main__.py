"""``python -m benchmarks [NAME [OPTIONS]]``: one benchmark, or all of them in their short form."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = {
    "aa": "20 runs of a baseline against itself: how many intervals contain 1",
    "overhead": "an experiment through the dashboard against a bare script with the same samples; fixed cost by stage",
    "reuse": "a 12-variant study against its 12 experiments run alone, each from an empty cache",
    "versus": "five conversions through a bare script, Steelyard, Olive and optimum-benchmark, side by side",
}


def main(arguments: list[str]) -> int:
    """Run the named benchmark with its options, or every one."""
    if arguments and arguments[0] in {"-h", "--help"}:
        print(__doc__, *(f"  {name:10} {what}" for name, what in BENCHMARKS.items()), sep="\n")
        return 0
    if arguments and arguments[0] not in BENCHMARKS:
        print(f"no benchmark is named {arguments[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    commands = [arguments] if arguments else [[name] for name in BENCHMARKS]
    code = 0
    for command in commands:
        print(f"\n== {command[0]}: {BENCHMARKS[command[0]]}\n", flush=True)
        code |= subprocess.run([sys.executable, "-m", f"benchmarks.{command[0]}", *command[1:]], check=False).returncode
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
