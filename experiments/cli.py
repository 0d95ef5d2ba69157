"""The engine from a shell: ``run``, ``submit``, ``catalog``, ``hardware`` (and ``attempt``, for workers).

Only the standard library is imported before a command is known, so that usage errors and ``--help`` are instant;
torch is imported by the processes that build and measure, never by this one.

Exit codes: 0 fine, 1 an experiment failed, 2 bad usage or bad spec, 3 gate failed, 4 server unreachable or timed
out, 5 gate undecided, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.console import Progress
    from experiments.protocols import Host
    from experiments.records import Event, StudyReport
    from experiments.spec import StudySpec

FINE, FAILED, USAGE, GATE_FAILED, UNREACHABLE, GATE_UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


class Refused(Exception):
    """What the user asked for can't be done; each line is 'path: reason'."""

    def __init__(self, *lines: str, code: int = USAGE) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong on one line instead of repeating the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{self.prog}: {message}; see {self.prog} --help")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code, and shows errors as lines on standard error, never as a trace."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        options = _parser().parse_args(argv)
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except Refused as refused:
        for line in refused.lines:
            print(_one_line(line), file=sys.stderr)
        return refused.code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); keep Python from complaining about it on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except Exception as error:  # a fault of ours: one line for the user, the whole story on request
        if os.environ.get("STEELYARD_TRACEBACK"):
            raise
        line = f"steelyard: internal error: {type(error).__name__}: {error} (STEELYARD_TRACEBACK=1 shows where)"
        print(_one_line(line), file=sys.stderr)
        return FAILED


def _terminated(number: int, frame: Any) -> NoReturn:
    """SIGTERM ends like Ctrl-C: through the ``finally`` blocks that stop the processes of an experiment."""
    raise SystemExit(128 + number)


def _one_line(text: str) -> str:
    from experiments.console import printable

    return printable(text)


def _parser() -> _Parser:
    from experiments import __version__

    parser = _Parser(prog="steelyard", description="Weigh ways to make a model smaller or faster, by running them.")
    parser.add_argument("--version", action="version", version=f"steelyard {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a study here, without a server", description=_run.__doc__)
    run.add_argument("spec", type=Path, metavar="SPEC.yaml")
    run.add_argument("--json", type=Path, metavar="OUT.json", help="write the study's report here")
    run.add_argument("--artifacts", type=Path, metavar="DIR", help="keep the optimized models here")
    run.add_argument(
        "--unpaired",
        action="store_true",
        help="benchmark only: each experiment alone in one process, no baseline beside it, no quality; "
        "the report is marked and no server accepts it",
    )
    run.add_argument(
        "--requests",
        type=_counts,
        default=(),
        metavar="50,20",
        help="benchmark only: exactly this many timed requests at each batch size, whatever the spec says",
    )
    run.set_defaults(command=_run)

    submit = commands.add_parser("submit", help="queue a study on a server", description=_submit.__doc__)
    submit.add_argument("spec", type=Path, metavar="SPEC.yaml")
    submit.add_argument("--server", required=True, metavar="URL", help="e.g. http://127.0.0.1:8000")
    submit.add_argument("--wait", action="store_true", help="follow the study to its end and show its results")
    submit.add_argument("--gate", action="store_true", help="wait, and end with the gate's verdict")
    submit.add_argument("--junit", type=Path, metavar="FILE", help="wait, and write the outcome as JUnit XML")
    submit.add_argument("--markdown", type=Path, metavar="FILE", help="wait, and write the results as Markdown")
    submit.add_argument("--timeout", type=_positive, metavar="SECONDS", help="wait at most this long (exit 4)")
    submit.add_argument(
        "--patience", type=_positive, default=60.0, metavar="SECONDS", help="retry an absent server this long"
    )
    submit.set_defaults(command=_submit)

    catalog = commands.add_parser("catalog", help="what can be asked for", description=_catalog.__doc__)
    catalog.add_argument("--json", action="store_true", help="everything, JSON schemas included")
    catalog.set_defaults(command=_catalog)

    hardware = commands.add_parser("hardware", help="what this machine is and can do", description=_hardware.__doc__)
    hardware.add_argument("--json", action="store_true")
    hardware.set_defaults(command=_hardware)

    attempt = commands.add_parser("attempt")  # no help: started by workers, not by people
    attempt.add_argument("--spec", type=Path, required=True, metavar="FILE.json")
    attempt.add_argument("--out", type=Path, required=True, metavar="REPORT.json")
    attempt.add_argument("--events-fd", type=int, required=True, metavar="N")
    attempt.add_argument("--cores", type=_cores, required=True, metavar="0,1")
    attempt.set_defaults(command=_attempt)
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers of requests such as 50,20")
    return counts


def _cores(text: str) -> tuple[int, ...]:
    try:
        cores = tuple(int(part) for part in text.split(","))
    except ValueError:
        cores = ()
    if not cores or min(cores) < 0 or len(set(cores)) != len(cores):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of cores such as 0,1")
    return cores


def _read_spec(path: Path) -> bytes:
    """The file's bytes; one too large is refused before it is read."""
    from experiments.spec import MAX_BYTES

    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if len(body) > MAX_BYTES:
        raise Refused(f"{path}: a spec may have at most {MAX_BYTES:,} bytes")
    return body


def _parse(path: Path, body: bytes) -> StudySpec:
    from experiments.spec import SpecError, parse

    try:
        return parse(body, syntax="json" if path.suffix.lower() == ".json" else "yaml")
    except SpecError as error:
        raise Refused(*(str(p) if p.path else f"{path}: {p.message}" for p in error.problems)) from None


def _writable(path: Path | None) -> None:
    """Refuse an output that could not be written, before minutes of work rather than after."""
    if path is None:
        return
    if path.is_dir():
        raise Refused(f"{path}: is a directory")
    if not path.parent.is_dir():
        raise Refused(f"{path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Refused(f"{path}: can't be written")


def _write(path: Path | None, data: bytes) -> None:
    if path is not None:
        try:
            path.write_bytes(data)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from None


def _show(report: StudyReport) -> int:
    """Print the table and the verdict; 1 if an experiment gave no result."""
    from experiments import table

    print(table.render_text(report))
    if report.verdict:
        print(f"\n{_one_line(report.verdict)}")
    return FINE if all(e.status == "succeeded" for e in report.experiments) else FAILED


def _run(options: argparse.Namespace) -> int:
    """Run every experiment of a study on this machine and show the results side by side."""
    from experiments.console import progress
    from experiments.preflight import senseless_problems

    spec = _parse(options.spec, _read_spec(options.spec))
    if problems := senseless_problems(spec):
        raise Refused(*map(str, problems))
    if options.requests and len(options.requests) != len(spec.workload.batch_sizes):
        raise Refused(
            f"--requests: the workload has {len(spec.workload.batch_sizes)} batch sizes, give one number for each"
        )
    _writable(options.json)
    if options.artifacts is not None:
        try:
            options.artifacts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(f"{options.artifacts}: {error.strerror}") from None

    from experiments.pipeline import run_study

    with progress() as shown:
        report = run_study(
            spec,
            _host(lambda message, fraction: shown.at("preparing", "", message, fraction)),
            on_event=lambda name, event: _follow(shown, name, event),
            artifacts=options.artifacts,
            paired=not options.unpaired,
            requests=options.requests,
        )
    _write(options.json, report.model_dump_json(indent=1).encode())
    return _show(report)


def _host(tell: Callable[[str, float | None], None], path_roots: tuple[Path, ...] | None = None) -> Host:
    """This machine's cache and network rules, from the environment."""
    from experiments.parts.cache import default_cache
    from experiments.protocols import Host

    offline = os.environ.get("HF_HUB_OFFLINE", "").strip().lower() not in {"", "0", "false", "no", "off"}
    return Host(cache=default_cache(), path_roots=path_roots, offline=offline, tell=tell)


def _follow(shown: Progress, name: str, event: Event) -> None:
    """Put one event of a local run on the screen."""
    if event.kind in {"stage", "progress"} and event.state != "done":
        shown.at(name, event.stage or "", event.message or "", event.fraction, event.seconds_left)
    elif event.kind == "log":
        shown.line(f"{name}: {event.message}")
    elif event.kind == "report":
        shown.ended(name, "succeeded")
    elif event.kind == "failure" and event.failure is not None:
        fix = f" {event.failure.fix}" if event.failure.fix else ""
        shown.ended(name, "failed", f"{event.failure.message}.{fix}" if fix else event.failure.message)


def _submit(options: argparse.Namespace) -> int:
    """Queue a study on a server. The API key is read from STEELYARD_API_KEY."""
    from experiments.client import Client, ServerRefused, ServerUnreachable
    from experiments.console import progress
    from experiments.submit import WaitedTooLong, follow, gate_exit, send

    body = _read_spec(options.spec)
    for output in (options.junit, options.markdown):
        _writable(output)
    key = os.environ.get("STEELYARD_API_KEY", "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise Refused("STEELYARD_API_KEY: set it to an API key of your team")
    try:
        client = Client(
            options.server, key, patience_s=options.patience, tell=lambda line: print(_one_line(line), file=sys.stderr)
        )
    except ValueError as error:
        raise Refused(f"--server: {error}") from None
    submitted = None
    try:
        if options.gate and not client.has_gate():
            raise Refused(f"--gate: this server has no gate ({client.server})")
        submitted = send(client, options.spec, body)
        for line in submitted.lines:
            print(_one_line(line), file=sys.stderr)
        print(f"study {submitted.id}: {submitted.page}")
        sys.stdout.flush()
        if not (options.wait or options.gate or options.junit or options.markdown):
            return FINE
        with progress() as shown:
            follow(client, submitted.id, shown, timeout_s=options.timeout)
        code = _results(client, submitted.id, options)
        if options.gate:
            with progress() as shown:
                verdict = gate_exit(client, submitted.id, shown)
            # A failed gate says more than a failed experiment, which says more than an undecided gate.
            code = verdict if verdict == GATE_FAILED or code == FINE else code
        return code
    except ServerRefused as error:
        if error.status == 404 and options.gate and submitted is not None:
            raise Refused(f"--gate: this server has no gate ({client.server})") from None
        raise Refused(*error.lines()) from None
    except (ServerUnreachable, WaitedTooLong) as error:
        raise Refused(str(error), code=UNREACHABLE) from None
    except KeyboardInterrupt:
        if submitted is not None:
            print(f"study {submitted.id} goes on on the server: {submitted.page}", file=sys.stderr)
        raise


def _results(client: Any, study: int, options: argparse.Namespace) -> int:
    """Fetch, write and show the results of an ended study."""
    from pydantic import ValidationError

    from experiments.records import StudyReport

    if options.markdown is not None:
        _write(options.markdown, client.markdown(study).encode())
    try:
        report = StudyReport.model_validate(client.results(study))
    except ValidationError:
        raise Refused(
            f"{client.server}: its results are of another version; install the server's version of steelyard",
            code=UNREACHABLE,
        ) from None
    if options.junit is not None:
        from experiments.junit import junit_xml

        _write(options.junit, junit_xml(report))
    return _show(report)


def _catalog(options: argparse.Namespace) -> int:
    """Every technique, runtime, layout, model source, data source and metric that this installation knows."""
    from experiments import catalog

    described = catalog.describe()
    if options.json:
        print(json.dumps(described, indent=1))
        return FINE
    for kind, rows in described.items():
        print(f"{kind}:")
        width = max((len(row["name"]) for row in rows), default=0)
        for row in rows:
            text = row.get("definition") or row.get("summary") or row["title"]
            unit = f" [{row['unit']}]" if row.get("unit") else ""
            print(f"  {row['name']:<{width}}  {text}{unit}")
    return FINE


def _hardware(options: argparse.Namespace) -> int:
    """The cores, devices, memory and measured ceilings that experiments would run with here."""
    from experiments import hardware
    from experiments.console import progress
    from experiments.parts.cache import default_cache
    from experiments.records import ExperimentError

    described = hardware.describe()
    try:
        with progress() as shown:
            shown.at("hardware", "measuring the ceilings of memory and arithmetic (once, then kept)")
            described["ceilings"] = hardware.ceilings(default_cache(), hardware.allowed_cores()).model_dump(mode="json")
    except ExperimentError as error:
        raise Refused(f"hardware: {error.failure.message}", code=FAILED) from None
    if options.json:
        print(json.dumps(described, indent=1))
        return FINE
    for line in _facts(described):
        print(_one_line(line))
    return FINE


def _facts(described: dict[str, Any]) -> list[str]:
    """A machine in lines for people."""
    ceilings = described["ceilings"]
    rows = {
        "machine": f"{described['cpu']}, {described['memory_bytes'] / 2**30:.1f} GiB, {described['platform']}",
        "cores": f"{','.join(map(str, described['cores']))} ({described['threads']} threads)",
        "isa": " ".join(described["isa"]),
        "devices": "; ".join(f"{device['name']} {device['model']}" for device in described["devices"]),
        "cuda": described["cuda"],
        "memory copy": f"{ceilings['copy_bytes_per_s'] / 1e9:.1f} GB/s",
    }
    for dtype, flops in ceilings["gemm_flops_per_s"].items():
        rows[f"gemm {dtype}"] = f"{flops / 1e9:.1f} GFLOP/s"
    width = max(map(len, rows))
    return [f"{name:<{width}}  {value}" for name, value in rows.items()]


def _attempt(options: argparse.Namespace) -> int:
    """Run one experiment for a worker: events as JSON lines to a file descriptor, the report to a file."""
    from pydantic import ValidationError

    from experiments.spec import ExperimentSpec, explain

    try:
        spec = ExperimentSpec.model_validate_json(options.spec.read_bytes())
    except OSError as error:
        raise Refused(f"{options.spec}: {error.strerror}") from None
    except ValidationError as error:
        raise Refused(*map(str, explain(error))) from None
    try:
        os.fstat(options.events_fd)
    except OSError as error:
        raise Refused(f"--events-fd: descriptor {options.events_fd}: {error.strerror}") from None

    from experiments.pipeline import run_attempt

    # As on the server, `source: path` reaches only what was opened to it; a person's own `run` reads anywhere.
    roots = tuple(Path(part) for part in os.environ.get("STEELYARD_PATH_ROOTS", "").split(":") if part)
    report = run_attempt(
        spec,
        _host(lambda message, fraction: None, roots),
        out=options.out,
        events_fd=options.events_fd,
        cores=options.cores,
    )
    return FINE if report.status == "succeeded" else FAILED


if __name__ == "__main__":
    sys.exit(main())
