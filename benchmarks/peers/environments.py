"""The environments of the peers: made once below the cache, by their own pins."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.records import digest


@dataclass(frozen=True)
class Peer:
    """A product to compare with.

    Attributes:
        script: its file in this package.
        pins: what is installed into its environment.
    """

    name: str
    script: str
    pins: tuple[str, ...]


COMMON = ("torch==2.13.0", "onnx==1.23.2", "onnxruntime==1.31.1", "numpy==2.4.6", "protobuf==7.36.2")
PEERS = (
    Peer(
        "Olive",
        "olive_ai.py",
        (
            *("olive-ai==0.13.0", "requests", "pydantic==2.13.5", "transformers==4.57.6"),
            *("optimum==2.1.0", "optimum-onnx==0.1.0"),
            *COMMON,
        ),
    ),
    # 0.6.0 imports names that optimum 2 has no more.
    Peer(
        "optimum-benchmark",
        "optimum_bench.py",
        ("optimum-benchmark==0.6.0", "optimum==1.27.0", "transformers==4.51.3", *COMMON),
    ),
)


def environment(peer: Peer, cache: Path) -> Path:
    """The interpreter of ``peer``'s environment, which is made if it is not there (minutes, over a GB).

    Raises:
        RuntimeError: it can't be made; the message is pip's last line.
    """
    folder = cache / "benchmarks" / f"{peer.name.lower()}-{digest(list(peer.pins))[:12]}"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    made = subprocess.run(
        ["nice", "-n", "5", str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", *peer.pins],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise RuntimeError(f"its environment can't be made: {(made.stderr.strip().splitlines() or ['?'])[-1][:300]}")
    done.touch()
    return python
