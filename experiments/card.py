"""The card of an artifact: what it is, what it measured, how to open it elsewhere, and how to make it again. Pure.

``README.md`` and ``spec.yaml`` stand beside the weights, from ``steelyard run --artifacts`` and in every download.
Whatever a user wrote (names, paths) is escaped: it shows as text and can't become markup or a shell command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments import catalog
from experiments.numbers import significant
from experiments.parts.load_code import load_code
from experiments.records import Label, Measurement, Report

README = "README.md"
SPEC = "spec.yaml"

_MEANING = {
    Label.DENSE: "stored and computed as it is",
    Label.PACKED: "stored small and computed small",
    Label.WEIGHT_ONLY: "stored small, widened when it is computed",
    Label.FAKE_QUANT: "rounded, but stored and computed as wide as before: no smaller and no faster",
    Label.MASKED_SPARSE: "weights set to zero, but stored and multiplied all the same: no smaller and no faster",
}
#: Stored unit -> (shown unit, factor).
_SHOWN = {"bytes": ("MB", 1e-6), "share": ("", 1.0)}


def folder_name(experiment: str) -> str:
    """The experiment's name as a folder that every system takes."""
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in experiment).lstrip(".")[:100] or "artifact"


def write_card(folder: Path, report: Report) -> None:
    """Write README.md and spec.yaml beside the weights in ``folder``; a card that the library left there gives way."""
    (folder / README).write_text(readme(report))
    (folder / SPEC).write_text(rebuilding_spec(report))


def rebuilding_spec(report: Report) -> str:
    """The study of this one experiment and its baseline, as YAML for ``steelyard run``; every default is written out.

    A model of a hub is pinned to the revision that was used.
    """
    spec = report.spec
    variants = [spec["baseline"]]
    if spec["variant"]["name"] != spec["baseline"]["name"]:
        variants.append(spec["variant"])
    model = dict(spec["model"])
    if model.get("source") == "hub" and report.environment and report.environment.model_revision:
        model["revision"] = report.environment.model_revision
    shared = ("task", "dataset", "workload", "seed", "slo", "price")
    study = {
        "schema_version": 1,
        "name": spec["name"],
        "model": model,
        **{key: spec[key] for key in shared if spec.get(key) is not None},
        "baseline": spec["baseline"]["name"],
        "experiments": [_written(variant) for variant in variants],
        "resources": spec["resources"],
    }
    return yaml.safe_dump(study, sort_keys=False, allow_unicode=True, width=100)


def _written(variant: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in variant.items() if value is not None}


def readme(report: Report) -> str:
    """The card as Markdown."""
    parts = [
        f"# {escaped(report.experiment)}",
        _summary(report),
        _section("Recipe", _recipe(report)),
        _section("How to load it", _loading(report)),
        _section("Metrics", _metrics(report)),
        _section("Where the numbers were made", _fingerprint(report)),
        _section("How to make it again", _again(report)),
        _section("Licence", _licence(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it was written, on one line."""
    flat = " ".join(str(text).split())
    flat = re.sub(r"([\\`*_\[\]#|~$<>!])", r"\\\1", flat).replace("&", "&amp;")
    # No list from a leading mark or number, and no link from an address that was only mentioned.
    flat = re.sub(r"^([-+])(?=\s|$)", r"\\\1", re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", flat))
    return flat.replace("://", "\\://").replace("@", "\\@").replace("www.", "www\\.")


def _code(text: str) -> str:
    """Inline code that no backtick in it can end."""
    flat = " ".join(str(text).split())
    fence = "`" * (max((len(run) for run in re.findall(r"`+", flat)), default=0) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def _cell(text: str) -> str:
    return escaped(text) or " "


def _section(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(lines).strip("\n")
    return f"## {title}\n\n{body}" if body else ""


def _summary(report: Report) -> str:
    lines = []
    env, artifact = report.environment, report.artifact
    source = env.model if env else str(report.spec.get("model", {}).get("name", ""))
    lines.append(f"Made from **{escaped(source)}** for {escaped(report.task)} and measured by Steelyard.")
    if artifact is not None:
        meaning = _MEANING[artifact.label]
        lines.append(
            f"It is **{artifact.label.value}** ({meaning}): {significant(artifact.bytes / 1e6)} MB of weights on disk, "
            f"{artifact.parameters:,} parameters, mostly {artifact.dtype}, form {artifact.form}."
        )
    if report.status != "succeeded" and report.failure is not None:
        lines.append(f"**The experiment failed** ({report.failure.kind.value}): {escaped(report.failure.message)}")
    return " ".join(lines)


# ---------------------------------------------------------------------------------------------------------- recipe


def _recipe(report: Report) -> Iterable[str]:
    variant = report.spec["variant"]
    steps = variant.get("recipe") or ()
    if not steps:
        yield "The model as it is, no step."
    effects = list(report.effects)
    for number, step in enumerate(steps, 1):
        settings = ", ".join(f"{key} = {_code(_value(value))}" for key, value in step.items() if key != "technique")
        yield f"{number}. **{escaped(step['technique'])}**{f': {settings}' if settings else ''}"
        effect = next((e for e in effects if e.technique == step["technique"]), None)
        if effect is None:
            continue
        effects.remove(effect)
        took = f" ({significant(effect.seconds)} s)" if effect.seconds else ""
        yield f"   * {escaped(effect.summary)}{took}"
        for name, count in (("parameters removed", effect.removed), ("weights set to zero", effect.zeros)):
            if count:
                yield f"   * {count:,} {name}"
        for warning in effect.warnings:
            yield f"   * **Mind:** {escaped(warning)}"
        if effect.kept:
            named = list(effect.kept.items())
            shown = "; ".join(f"{_code(layer)} ({escaped(why)})" for layer, why in named[:20])
            more = f"; and {len(named) - 20} more" if len(named) > 20 else ""
            yield f"   * left as they were: {shown}{more}"
    yield ""
    runtime = variant["runtime"]
    options = ", ".join(f"{key} = {_code(_value(value))}" for key, value in runtime.items() if key != "kind")
    yield f"Runtime: **{escaped(runtime['kind'])}**{f', {options}' if options else ''}."
    baseline = report.spec["baseline"]
    made = " -> ".join(step["technique"] for step in baseline.get("recipe") or ()) or "the model as it is"
    yield ""
    yield f"Baseline: **{escaped(baseline['name'])}** ({escaped(made)} on {escaped(baseline['runtime']['kind'])})."


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return "null" if value is None else str(value)


# --------------------------------------------------------------------------------------------------------- loading


def _loading(report: Report) -> Iterable[str]:
    if report.artifact is None:
        return
    code, packages = load_code(report)
    yield "Steelyard is not needed. In this folder:"
    yield ""
    yield "```python"
    yield from code
    yield "```"
    versions = report.environment.libraries if report.environment else {}
    found = [(p, next((v for n, v in versions.items() if n == p or n.startswith(f"{p}-")), "")) for p in packages]
    yield ""
    yield f"Made and checked with {', '.join(f'{p} {v}'.strip() for p, v in found)}."


# --------------------------------------------------------------------------------------------------------- metrics


def _metrics(report: Report) -> Iterable[str]:
    if not report.measurements:
        return
    yield f"Compared with the baseline {escaped(report.baseline)}; intervals are at 95 %."
    yield ""
    yield "| metric | at | value | interval | n | note |"
    yield "| :-- | :-- | --: | --: | --: | :-- |"
    order = {name: index for index, name in enumerate(catalog.definitions())}
    for found in sorted(report.measurements, key=lambda m: order.get(m.metric, len(order))):
        if found.value is not None:
            yield f"| {' | '.join(_cell(cell) for cell in _measured(found))} |"
    yield ""
    yield from _undefined(report.measurements)
    if report.canary is not None:
        yield ""
        differences = [
            (report.canary.source_difference, "the source model"),
            (report.canary.round_trip_difference, "the process that built it, after it was loaded afresh"),
        ]
        said = [f"{significant(value)} from {what}" for value, what in differences if value is not None]
        if said:
            yield f"Before timing, its outputs differed by at most {' and by at most '.join(said)}."
    if report.notes:
        yield ""
    for note in report.notes:
        yield f"* {escaped(note)}"


def _undefined(measurements: Iterable[Measurement]) -> Iterable[str]:
    """What has no number, by the reason why."""
    reasons: dict[str, list[str]] = {}
    for found in measurements:
        if found.value is None:
            title, at, *_ = _measured(found)
            reasons.setdefault(found.reason or "undefined", []).append(f"{title} ({at})" if at else title)
    for reason, names in reasons.items():
        yield f"* No number, {escaped(reason)}: {escaped('; '.join(dict.fromkeys(names)))}"


def _measured(found: Measurement) -> Sequence[str]:
    definition = catalog.definitions().get(found.metric)
    unit, factor = _SHOWN.get(found.unit, (found.unit, 1.0))
    value = "" if found.value is None else f"{significant(found.value * factor)} {unit}"
    interval = ""
    if found.interval is not None:
        low, high = (significant(end * factor) for end in (found.interval.low, found.interval.high))
        interval = f"{low} to {high}"
    return (
        definition.title if definition else found.metric,
        ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found.at.items()),
        value.strip(),
        interval,
        f"{found.n:,}" if found.n is not None else "",
        found.note or "",
    )


# ------------------------------------------------------------------------------------------- fingerprint, rebuilding


def _fingerprint(report: Report) -> Iterable[str]:
    env = report.environment
    if env is None:
        return
    rows: list[tuple[str, str]] = [
        ("model", f"{env.model}{f' at {env.model_revision}' if env.model_revision else ''}"),
        ("model weights, SHA-256", env.model_sha256),
        ("data", f"{env.dataset}, {env.dataset_sha256}" if env.dataset else "none"),
        ("artifact, SHA-256", report.artifact.sha256 if report.artifact else "none"),
        ("workload, SHA-256", env.workload_sha256),
        ("spec, SHA-256", env.spec_sha256),
        ("CPU", f"{env.cpu}, {env.threads} threads, {', '.join(env.isa)}"),
        ("devices", ", ".join(f"{device.name} ({device.model})" for device in env.devices)),
        ("libraries", ", ".join(f"{name} {version}" for name, version in env.libraries.items())),
        ("Python, system", f"{env.python}, {env.platform}"),
        ("Steelyard", env.code_version),
        ("seed", str(env.seed)),
    ]
    yield "| | |"
    yield "| :-- | :-- |"
    for name, value in rows:
        yield f"| {name} | {_cell(value)} |"


def _again(report: Report) -> Iterable[str]:
    yield f"`{SPEC}` beside this file is the whole experiment with its baseline, every default written out:"
    yield ""
    yield "```shell"
    yield f"steelyard run {SPEC} --artifacts rebuilt --json rebuilt.json"
    yield "```"
    yield ""
    yield f"The artifact is then in `rebuilt/{folder_name(report.experiment)}`."
    source = report.spec["model"].get("source")
    if source in ("path", "upload"):
        yield f"The model came from {escaped(str(source))}: the same files must be there (see the SHA-256 above)."


def _licence(report: Report) -> Iterable[str]:
    env = report.environment
    model = escaped(env.model if env else "the source model")
    if env is not None and env.model_licence:
        yield f"The source model {model} states: **{escaped(env.model_licence)}**. This model is derived from it."
    else:
        yield f"The source model {model} states no licence in its files; ask its maker before passing this on."
