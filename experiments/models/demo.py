"""Real models that need no hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.parts import demo_minilm, demo_smollm2, demo_vit
from experiments.parts.cache import Cache
from experiments.parts.digits import LABELS as DIGITS
from experiments.parts.model_facts import facts_of_folder
from experiments.parts.reviews import LABELS as SENTIMENTS
from experiments.protocols import Host, ModelFacts, ModelSource, Task

DemoName = Literal["minilm-reviews", "smollm2-135m", "digits-vit"]


@dataclass(frozen=True)
class Demo:
    """A demo model as people choose it, and its facts before it was ever made.

    ``recipe`` names how it is made and is part of its cache key: raise it when the making changes.
    """

    name: DemoName
    task: Task
    dataset: str
    summary: str
    facts: ModelFacts
    make: Callable[[Host, Path], None]
    recipe: str
    licence: str


DEMO_MODELS: tuple[Demo, ...] = (
    Demo(
        name="minilm-reviews",
        task="text-classification",
        dataset="reviews",
        summary="all-MiniLM-L6-v2 fine-tuned here on movie-review snippets: positive or negative. 22.7 M parameters.",
        facts=ModelFacts(
            name="minilm-reviews",
            model_type="bert",
            architectures=("BertForSequenceClassification",),
            task="text-classification",
            parameters=22_713_986,
            dtype="float32",
            weights_bytes=90_867_952,
            max_length=512,
            hidden_size=384,
            layers=6,
            heads=12,
            kv_heads=12,
            vocab_size=30_522,
            labels=SENTIMENTS,
        ),
        make=demo_minilm.make,
        recipe=f"{demo_minilm.DISTRIBUTION} {demo_minilm.VERSION}, {demo_minilm.PLAN}",
        licence="apache-2.0 (all-MiniLM-L6-v2)",
    ),
    Demo(
        name="smollm2-135m",
        task="text-generation",
        dataset="python-docs",
        summary="SmolLM2-135M-Instruct, converted once from its Q4_1 file. 134.5 M parameters.",
        facts=ModelFacts(
            name="smollm2-135m",
            model_type="llama",
            architectures=("LlamaForCausalLM",),
            task="text-generation",
            parameters=134_515_008,
            dtype="float32",
            weights_bytes=538_090_408,
            max_length=demo_smollm2.CONTEXT,
            hidden_size=576,
            layers=30,
            heads=9,
            kv_heads=3,
            vocab_size=49_152,
            tied_embeddings=True,
            notes=(demo_smollm2.NOTE,),
        ),
        make=demo_smollm2.make,
        recipe=f"{demo_smollm2.DISTRIBUTION} {demo_smollm2.VERSION}, byte-level BPE",
        licence="apache-2.0 (SmolLM2-135M-Instruct)",
    ),
    Demo(
        name="digits-vit",
        task="image-classification",
        dataset="digits",
        summary="A vision transformer of 0.1 M parameters trained here on 8 x 8 handwritten digits.",
        facts=ModelFacts(
            name="digits-vit",
            model_type="vit",
            architectures=("ViTForImageClassification",),
            task="image-classification",
            parameters=136_138,
            dtype="float32",
            weights_bytes=552_320,
            hidden_size=64,
            layers=4,
            heads=4,
            kv_heads=4,
            labels=DIGITS,
            image_size=(1, 8, 8),
        ),
        make=demo_vit.make,
        recipe=f"{demo_vit.SHAPE}, {demo_vit.PLAN}",
        licence="trained here on the optical recognition of handwritten digits data (UCI), cc-by-4.0",
    ),
)
_BY_NAME = {demo.name: demo for demo in DEMO_MODELS}


class DemoModel(ModelSource):
    """A demo model by name."""

    title = "Demo model"
    summary = "Real models that need no account and no hub; made once on this machine, then kept."

    source: Literal["demo"] = "demo"
    name: DemoName

    def display(self) -> str:
        """The demo's name."""
        return self.name

    def inspect(self, host: Host) -> ModelFacts:
        """Facts, also before the model was made."""
        folder = self._entry(host)
        return facts_of_folder(folder, name=self.name) if folder.is_dir() else _BY_NAME[self.name].facts

    def ready(self, host: Host) -> Path | None:
        """The model's folder, if it was made."""
        folder = self._entry(host)
        return folder if folder.is_dir() else None

    def fetch(self, host: Host) -> Path:
        """The model's folder; the first call trains or converts it, with progress through ``host.tell``."""
        demo = _BY_NAME[self.name]
        folder, _ = Cache(host.cache).get("models", self._key(), lambda folder: demo.make(host, folder))
        return folder

    def licence(self, folder: Path) -> str | None:
        """Of what the demo was made from."""
        return _BY_NAME[self.name].licence

    def _entry(self, host: Host) -> Path:
        return Cache(host.cache).path("models", self._key())

    def _key(self) -> dict[str, object]:
        return {"demo": self.name, "recipe": _BY_NAME[self.name].recipe}
