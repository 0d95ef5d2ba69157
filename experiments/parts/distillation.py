"""Trains a student on the answers of the model that it was cut from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from experiments.parts.depth import drop_blocks
from experiments.parts.encoded_rows import encode_rows
from experiments.parts.learning import TARGETS, course, cross_entropy, inputs_of, learn, training_form
from experiments.parts.narrowing import narrowed
from experiments.parts.student_shape import chosen_layers
from experiments.parts.tied_weights import parameter_count
from experiments.parts.tokenizer import load_tokenizer
from experiments.parts.training import pruned_masks, thinned
from experiments.records import ExperimentError, FailureKind, StepEffect
from experiments.stats import Undefined, shared_columns

if TYPE_CHECKING:
    from experiments.parts.training import Batch
    from experiments.protocols import BuildContext
    from experiments.techniques.distill import Distill


def distilled(teacher: Any, step: Distill, context: BuildContext) -> tuple[Any, StepEffect]:
    """The student that ``step`` describes, trained, and what became of the teacher.

    Raises:
        ExperimentError: see ``Distill.apply_torch``.
    """
    from experiments.parts.block_list import block_list

    count = len(block_list(teacher)[1])
    kept = chosen_layers(step.layers, count)
    if isinstance(kept, str):
        raise ExperimentError(FailureKind.UNSUPPORTED, kept, field="recipe.layers")
    if len(kept) == count and step.width == 1:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"the student would be as large as its teacher: {count} layers of full width",
            fix="Choose fewer layers or a smaller width; finetune trains the model as it is.",
            field="recipe.layers",
        )
    student, said = copy.deepcopy(teacher), ""
    if len(kept) < count:
        drop_blocks(student, set(range(count)) - set(kept))
    if step.width < 1:
        cut = narrowed(student, step.width)
        student, said = cut.module, f", {cut.said}"
    before, after = parameter_count(teacher), parameter_count(student)
    rows = encode_rows(context.rows("train"), context, length=step.max_length)
    teacher.float().to(context.device).eval().requires_grad_(False)
    with training_form(student, context) as warnings:
        lesson = Lesson(teacher, step, context, kept, labelled=len(rows) > 0 and rows.targets([0]) is not None)
        masks = {f"student.{name}": mask for name, mask in pruned_masks(student).items()} if context.masked else {}
        losses = learn(lesson.learner(student), rows, step, context, lesson.loss, masks=masks)
    summary = [
        f"student of layers {', '.join(map(str, kept))} of {count}{said}: {after:,} of {before:,} parameters",
        lesson.said(),
        course(losses, step, rows),
    ]
    effect = StepEffect(
        technique=step.technique,
        summary="; ".join(part for part in summary if part),
        changed=len(kept),
        of=count,
        removed=before - after,
        warnings=(*warnings, *lesson.warnings),
        losses=thinned(losses),
    )
    return student, effect


class Learner(torch.nn.Module):
    """A student, and what projects its hidden states to its teacher's width while it learns (empty where equal)."""

    def __init__(self, student: Any, projections: list[Any]) -> None:
        super().__init__()
        self.student = student
        self.projections = torch.nn.ModuleList(projections)


class Lesson:
    """What a student is told: the loss of a batch.

    Args:
        teacher: answers in evaluation mode; never trained.
        step: temperature and weights of the parts.
        context: task, and the tokenizer of models whose outputs differ in width.
        kept: the teacher's layer behind each of the student's.
        labelled: the rows have the right answers too.
    """

    def __init__(
        self, teacher: Any, step: Distill, context: BuildContext, kept: tuple[int, ...], *, labelled: bool
    ) -> None:
        self._teacher = teacher
        self._step = step
        self._context = context
        self._kept = kept
        self._features = context.task == "feature-extraction"
        self._labelled = labelled and not self._features
        self._hidden = step.hidden_weight > 0 or self._features
        self.warnings: tuple[str, ...] = ()

    def learner(self, student: Any) -> Learner:
        """The student with the projections that it needs, seeded."""
        wide, narrow = self._teacher.config.hidden_size, student.config.hidden_size
        projections: list[Any] = []
        if self._hidden and wide != narrow:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._context.seed)
                projections = [torch.nn.Linear(narrow, wide, bias=False) for _ in range(len(self._kept) + 1)]
        learner = Learner(student, projections)
        learner.to(self._context.device)
        return learner

    def said(self) -> str:
        """What is learnt from, in words."""
        step = self._step
        hidden = f" and {step.hidden_weight:g} x the hidden states" if step.hidden_weight else ""
        if self._features:
            return f"taught by the teacher's embeddings, last hidden states{hidden}"
        if not self._labelled:
            alone = f"at temperature {step.temperature:g} alone (rows have no labels)"
            return f"taught by the teacher's answers {alone}{hidden}"
        return (
            f"taught {step.alpha:g} by the teacher's answers at temperature {step.temperature:g}, "
            f"{1 - step.alpha:g} by labels{hidden}"
        )

    def loss(self, learner: Any, batch: Batch) -> torch.Tensor:
        """The loss of the student in ``learner`` on one batch."""
        step, inputs = self._step, inputs_of(batch, self._context.task)
        with torch.no_grad():
            theirs = self._teacher(**inputs, output_hidden_states=self._hidden)
        mine = learner.student(**inputs, output_hidden_states=self._hidden)
        mask = inputs.get("attention_mask")
        if self._features:
            total = _embedding_distance(mine.last_hidden_state, theirs.last_hidden_state, mask)
            total = total + _relative_error(mine.last_hidden_state, theirs.last_hidden_state, mask)
        else:
            alpha = step.alpha if self._labelled else 1.0
            width = self._width(theirs.logits.shape[-1], mine.logits.shape[-1])
            total = alpha * soft_loss(theirs.logits[..., :width], mine.logits[..., :width], step.temperature)
            if alpha < 1:
                total = total + (1 - alpha) * cross_entropy(mine.logits, batch[TARGETS])
        if step.hidden_weight:
            total = total + step.hidden_weight * self._hidden_loss(learner, mine, theirs, mask)
        return total

    def _hidden_loss(self, learner: Any, mine: Any, theirs: Any, mask: torch.Tensor | None) -> torch.Tensor:
        """Mean over the embedding and the layers of the error of the student's hidden states.

        Each layer is compared with the one it was cut from, the last one with the teacher's last: a decoder's final
        state is normalised, those before are not.
        """
        pairs = [(mine.hidden_states[0], theirs.hidden_states[0])]
        for own, layer in enumerate(self._kept[:-1]):
            pairs.append((mine.hidden_states[own + 1], theirs.hidden_states[layer + 1]))
        pairs.append((mine.hidden_states[-1], theirs.hidden_states[-1]))
        project: list[Callable[[Any], Any]] = list(learner.projections) or [lambda state: state] * len(pairs)
        errors = [_relative_error(to(state), target, mask) for to, (state, target) in zip(project, pairs, strict=True)]
        return torch.stack(errors).mean()

    def _width(self, teacher: int, student: int) -> int:
        """Columns that stand for the same thing in both outputs; see ``stats.shared_columns`` (FC-025)."""
        vocabulary = 0
        if teacher != student and self._context.task == "text-generation":
            vocabulary = load_tokenizer(self._context.source).get_vocab_size(with_added_tokens=True)
        columns = shared_columns(teacher, student, vocabulary)
        if isinstance(columns, Undefined):
            raise ExperimentError(
                FailureKind.UNSUPPORTED,
                f"teacher and student can't be compared: {columns.reason}",
                fix="Use models of one vocabulary or of the same classes.",
            )
        if columns.note is not None:
            self.warnings = (columns.note,)
        return columns.width


def soft_loss(teacher: torch.Tensor, student: torch.Tensor, temperature: float) -> torch.Tensor:
    """``T^2 KL(teacher || student)`` of logits softened by ``T``, in nats; mean over rows, or over tokens.

    Both are (batch, classes) or (batch, length, vocabulary). The factor keeps the size of the gradients independent of
    ``T`` (Hinton et al., arXiv:1503.02531, section 2).
    """
    width = teacher.shape[-1]
    p = torch.log_softmax(teacher.reshape(-1, width).float() / temperature, dim=-1)
    q = torch.log_softmax(student.reshape(-1, width).float() / temperature, dim=-1)
    return temperature**2 * torch.nn.functional.kl_div(q, p, reduction="batchmean", log_target=True)


def _relative_error(mine: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Mean square of the difference over the real tokens, as a share of the teacher's own mean square."""
    weights = torch.ones(mine.shape[:2], device=mine.device) if mask is None else mask.to(mine.dtype)
    wrong = ((mine - theirs).square().mean(dim=-1) * weights).sum()
    size = (theirs.square().mean(dim=-1) * weights).sum()
    return wrong / size.clamp_min(1e-12)


def _embedding_distance(mine: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """1 - mean cosine of the embeddings (means over the real tokens, as they are judged)."""
    weights = torch.ones(mine.shape[:2], device=mine.device) if mask is None else mask.to(mine.dtype)
    means = [(states * weights[..., None]).sum(1) / weights.sum(1, keepdim=True) for states in (mine, theirs)]
    return 1 - torch.nn.functional.cosine_similarity(means[0], means[1], dim=-1).mean()
