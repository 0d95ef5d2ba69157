"""What may never be in the repository, checked over every file that git tracks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SELF = Path(__file__).resolve()

#: Assembled from parts, so that this file does not hold what it forbids.
FORBIDDEN = {
    "host of a package index": re.compile(
        r"(files\.)?" + "python" + r"hosted\.org|\b" + "py" + r"pi\.org|--(extra-)?index-url|--find-links"
    ),
    "path of one machine": re.compile(
        r"(?<![\w.])/(" + r"wo" + r"rk|home/\w+|Users/\w+" + r")/|(?<![\w.])/ro" + r"ot/|/opt/(wheels|" + "py" + "pi)"
    ),
}
LARGEST_BYTES = 400_000


def tracked() -> list[Path]:
    """Every tracked file that exists, or a skip outside a git checkout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str | None:
    """The file's text, or None for binary files."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_no_tracked_file_names_a(what: str) -> None:
    found = []
    for path in tracked():
        if path == SELF or (text := text_of(path)) is None:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if FORBIDDEN[what].search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


def test_no_third_party_assets_weights_or_data_are_tracked() -> None:
    suffixes = {".onnx", ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".parquet", ".tar", ".gz", ".whl", ".zip"}
    names = re.compile(r"plotly.*\.js$|htmx.*\.js$|bootstrap.*\.(js|css)$|\.min\.(js|css)$")
    found = [p for p in tracked() if p.suffix in suffixes or names.search(p.name)]
    assert not found, f"third-party or generated files are fetched or packaged, never committed: {found}"


def test_tracked_text_files_are_small_enough_to_read() -> None:
    large = {
        str(p.relative_to(ROOT)): p.stat().st_size
        for p in tracked()
        if p.suffix not in {".png", ".json"} and p.stat().st_size > LARGEST_BYTES
    }
    assert not large


def test_pyproject_is_the_only_configuration() -> None:
    others = {"setup.py", "setup.cfg", "tox.ini", "pytest.ini", "mypy.ini", ".flake8", ".importlinter", "ruff.toml"}
    assert not [p for p in tracked() if p.name in others]
