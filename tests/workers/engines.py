"""Small programs that speak the engine's protocol, each with one habit (``python -m ... HABIT FD FOLDER``).

They are real processes that a real supervisor starts; only what they do inside is simple.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def emit(fd: int, kind: str, **fields: Any) -> None:
    line = json.dumps({"seq": 1, "t_ns": time.time_ns(), "kind": kind, **fields})
    os.write(fd, line.encode() + b"\n")


def succeed(fd: int, folder: Path) -> int:
    """Says everything an engine says and leaves a report."""
    spec = json.loads((folder / "spec.json").read_text())
    counter = os.environ.get("COUNTER")
    if counter:
        with open(counter, "a") as file:
            file.write("ran\n")
    emit(fd, "stage", stage="load", state="started", fraction=0.0)
    print("loading")
    emit(fd, "progress", fraction=0.5)
    emit(fd, "log", message="half way")
    measurement = {"metric": "latency_p50_ms", "value": 1.5, "unit": "ms", "at": {"batch_size": 1}}
    emit(fd, "measurement", measurement=measurement)
    report = {
        "experiment": spec["variant"]["name"],
        "baseline": spec["baseline"]["name"],
        "task": "text-classification",
        "spec": spec,
        "status": "succeeded",
        "measurements": [measurement],
    }
    (folder / "report.json").write_text(json.dumps(report))
    emit(fd, "report", report_path=str(folder / "report.json"), fraction=1.0)
    return 0


def deliver(fd: int, folder: Path) -> int:
    """Leaves a report and, as from a cache, the artifact that it tells of."""
    succeed(fd, folder)
    made = folder.parent / "cache" / "files"
    made.mkdir(parents=True)
    (made / "model.onnx").write_bytes(b"weights")
    report = json.loads((folder / "report.json").read_text())
    report["artifact"] = {
        "sha256": "ab" * 32, "form": "onnx", "label": "packed", "bytes": 7, "files": {"model.onnx": 7},
        "parameters": 7, "dtype": "int8", "path": str(made),
    }  # fmt: skip
    (folder / "report.json").write_text(json.dumps(report))
    return 0


def fail(fd: int, folder: Path) -> int:
    """Leaves a report with a typed failure."""
    spec = json.loads((folder / "spec.json").read_text())
    failure = {"kind": "canary", "message": "outputs are not finite"}
    report = {
        "experiment": spec["variant"]["name"],
        "baseline": spec["baseline"]["name"],
        "task": "text-classification",
        "spec": spec,
        "status": "failed",
        "failure": failure,
    }
    (folder / "report.json").write_text(json.dumps(report))
    emit(fd, "failure", failure=failure)
    return 1


def linger(fd: int, folder: Path) -> int:
    """Starts a family, some of it stubborn and one of it in a session of its own, and waits."""
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", stubborn])
    subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", orphan], check=True)
    stopped = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stopped.send_signal(signal.SIGSTOP)
    emit(fd, "stage", stage="measure", state="started", fraction=0.4)
    time.sleep(600)
    return 0


def killed(fd: int, folder: Path) -> int:
    """Dies as if the kernel had run out of memory."""
    print("about to need a lot")
    sys.stdout.flush()
    time.sleep(1.5)  # long enough to be weighed once
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def crash(fd: int, folder: Path) -> int:
    """Ends without a report."""
    print("Traceback: something broke")
    return 7


def hungry(fd: int, folder: Path) -> int:
    """Takes 300 MiB and holds them."""
    block = bytearray(300 << 20)
    block[::4096] = b"x" * len(block[::4096])
    time.sleep(600)
    return len(block)


def noisy(fd: int, folder: Path) -> int:
    """200,000 lines, one of 5 MB, 10,000 redraws, colours, bytes that are no text, and events that are none."""
    out = sys.stdout.buffer
    out.write(b"".join(b"line %d of many\n" % n for n in range(200_000)))
    out.write(b"x" * 5_000_000 + b"\n")
    out.write(b"".join(b"\r%d of 10000" % n for n in range(10_001)) + b"\n")
    out.write(b"\x1b[31mred\x1b[0m and \xff\xfe and <script>\n")
    out.flush()
    os.write(fd, b"not json\n" + b"y" * 200_000 + b"\n")
    emit(fd, "log", message="the last words")
    return 7


HABITS: dict[str, Callable[[int, Path], int]] = {
    habit.__name__: habit for habit in (succeed, deliver, fail, linger, killed, crash, hungry, noisy)
}

if __name__ == "__main__":
    sys.exit(HABITS[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3])))
