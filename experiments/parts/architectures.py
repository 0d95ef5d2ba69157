"""Which model types and tasks the installed transformers knows, read from its source without importing it.

transformers imports torch as soon as its model tables are touched; a web process must not.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from experiments.protocols import TASKS, Task

_TABLES: dict[Task, str] = {
    "text-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "text-generation": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "feature-extraction": "MODEL_MAPPING_NAMES",
}
#: Tasks whose head names the task of an architecture; a base model is for features.
_HEADS: tuple[Task, ...] = ("text-classification", "text-generation", "image-classification", "feature-extraction")


def known_model_types() -> frozenset[str]:
    """Every ``model_type`` that can be loaded without remote code, those registered in this process included."""
    return frozenset(_table("configuration_auto.py", "CONFIG_MAPPING_NAMES")) | _registered()


def installed_version() -> str:
    """The version of transformers."""
    return metadata.version("transformers")


def task_of(architectures: tuple[str, ...]) -> Task | None:
    """The task that the first architecture's head is for, or None if it is for none of ours."""
    for architecture in architectures[:1]:
        for task in _HEADS:
            if architecture in _classes(task):
                return task
    return None


def tasks_of(model_type: str, architectures: tuple[str, ...]) -> tuple[Task, ...]:
    """Tasks that a checkpoint can serve with weights it really has, in the order of ``TASKS``.

    With architectures known: the head's own task, and features if the type has a base model for them. Without: every
    task that the type has a class for, since only the weights can tell.
    """
    available = {task for task in TASKS if model_type in _table("modeling_auto.py", _TABLES[task])}
    if model_type in _registered():
        return TASKS
    if not architectures:
        return tuple(task for task in TASKS if task in available)
    own = task_of(architectures)
    return tuple(t for t in TASKS if t == own or (t == "feature-extraction" and t in available))


@cache
def ties_by_default(model_type: str) -> bool:
    """Whether the type's configuration class ties embeddings when config.json says nothing (transformers: yes)."""
    module = model_type.replace("-", "_")
    root = _root()
    source = root / "models" / module / f"configuration_{module}.py" if root else None
    if source is None or not source.is_file():
        return True
    default = re.search(r"tie_word_embeddings(?:\s*:[^=,]+)?\s*=\s*(True|False)\b", source.read_text(encoding="utf-8"))
    return default is None or default.group(1) == "True"


@cache
def _classes(task: Task) -> frozenset[str]:
    return frozenset(_table("modeling_auto.py", _TABLES[task]).values())


@cache
def _table(file: str, name: str) -> dict[str, str]:
    """The pairs of one ``NAME = OrderedDict([...])`` of transformers' auto classes; the first of several names."""
    for target, call in _assignments(file):
        if target == name and isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.List):
            pairs: dict[str, str] = {}
            for element in call.args[0].elts:
                if isinstance(element, ast.Tuple) and len(element.elts) == 2:
                    key, value = element.elts
                    if isinstance(value, ast.Tuple) and value.elts:
                        value = value.elts[0]
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                        pairs[str(key.value)] = str(value.value)
            return pairs
    return {}


@cache
def _assignments(file: str) -> tuple[tuple[str, ast.expr | None], ...]:
    root = _root()
    if root is None:
        return ()
    source = root / "models" / "auto" / file
    found: list[tuple[str, ast.expr | None]] = []
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.append((node.targets[0].id, node.value))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append((node.target.id, node.value))
    return tuple(found)


def _root() -> Path | None:
    spec = importlib.util.find_spec("transformers")
    return Path(spec.origin).parent if spec and spec.origin else None


def _registered() -> frozenset[str]:
    """Types that this process registered with ``AutoConfig.register``; never imports transformers for it."""
    auto = sys.modules.get("transformers.models.auto.configuration_auto")
    return frozenset(auto.CONFIG_MAPPING._extra_content) if auto else frozenset()
