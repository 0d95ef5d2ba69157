"""Writes ``load.py``, which opens an artifact with packed layers where this engine is not installed.

It is made of the very sources that the engine itself runs, so the two can't differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOAD = "load.py"

_HEAD = '''"""Loads the model beside this file. Needs torch, transformers and safetensors, nothing else.

    from load import load
    model = load()
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from safetensors.torch import load_file
from transformers.modeling_utils import no_init_weights

'''

_TAIL = '''
KINDS = {{{kinds}}}


def load(folder: str | Path = Path(__file__).parent, device: str = "cpu") -> torch.nn.Module:
    """The model in ``folder`` (by default: beside this file) on ``device``, in eval mode."""
    return packed_model(Path(folder), KINDS).to(device)


if __name__ == "__main__":
    print(load())
'''


def write_load_script(folder: Path, methods: Iterable[str]) -> None:
    """Write ``folder/load.py`` for layers of these ``methods`` (see ``parts.packed_layers``)."""
    from experiments.parts.packed_layer import PackedLayer
    from experiments.parts.packed_layers import packed_kinds
    from experiments.parts.packed_model import packed_model

    kinds = packed_kinds(methods)
    classes: list[type[Any]] = [PackedLayer, *kinds.values()]
    pieces = [*map(inspect.getsource, classes), inspect.getsource(packed_model)]
    named = ", ".join(f'"{method}": {kind.__name__}' for method, kind in kinds.items())
    (folder / LOAD).write_text("\n\n".join([_HEAD.rstrip("\n") + "\n", *pieces]) + "\n" + _TAIL.format(kinds=named))
