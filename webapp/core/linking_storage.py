"""A folder as a storage: a file that already lies on the same disk gets a second name there instead of a copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from django.core.files import File
from django.core.files.storage import FileSystemStorage


class LocalFile(File):  # type: ignore[type-arg]
    """A file of this machine on its way into a storage; whatever storage it is, it is read in pieces."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("rb"), name=path.name)
        self.path = path


class LinkingStorage(FileSystemStorage):
    """Names are content addresses: a name that is taken holds the same bytes, so nothing is written twice."""

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        """The name itself."""
        return name

    def _save(self, name: str, content: Any) -> str:
        source = getattr(content, "path", None)
        target = Path(self.path(name))
        if target.exists():
            return name
        if source is None:
            return str(super()._save(name, content))  # type: ignore[misc]  # not in its stubs
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except FileExistsError:
            return name  # another process stored the same bytes meanwhile
        except OSError:  # another disk, or one without hard links
            scratch = target.with_name(f".{target.name}.{os.getpid()}")
            try:
                shutil.copyfile(source, scratch)
                os.replace(scratch, target)
            finally:
                scratch.unlink(missing_ok=True)
        return name
