"""Pages of studies, experiments, queue and catalogue: they parse, call and render; queries and rules lie elsewhere."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from django.contrib import messages
from django.contrib.auth.models import AnonymousUser
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from experiments import catalog
from experiments.spec import SpecError, StudySpec, parse
from webapp.accounts.models import Role, Team, User
from webapp.accounts.services import require
from webapp.compare.views import context as compared
from webapp.core import log_text
from webapp.core.errors import Invalid
from webapp.core.pages import page
from webapp.core.templatetags.steelyard import yaml_text
from webapp.runs import history, live, log_pages, measured, preview, selectors, services, steps
from webapp.runs.filters import study_filter
from webapp.runs.forms import StudyForm
from webapp.runs.models import TERMINAL, Experiment, Status
from webapp.runs.refill import expressible


def person(request: HttpRequest) -> User:
    """The signed-in person; the middleware has sent everyone else to the sign-in."""
    assert not isinstance(request.user, AnonymousUser)
    return request.user


# ------------------------------------------------------------------------------------------------------------ home


@require_safe
@page
def home(request: HttpRequest, team: Team) -> HttpResponse:
    """What runs, what finished, what needs you."""
    recent = selectors.studies(team, limit=30).items
    running = [view for view in recent if view.status in {Status.RUNNING, Status.QUEUED}]
    failed = [view for view in recent if view.counts.get(Status.FAILED)]
    finished = [view for view in recent if view not in running]
    queue = selectors.queue_snapshot(team)
    return render(
        request,
        "runs/home.html",
        {
            "running": running,
            "finished": finished[:8],
            "failed": failed[:5],
            "queue": queue,
            "alive": [worker for worker in queue.workers if worker.alive],
            "empty": not recent,
        },
    )


# --------------------------------------------------------------------------------------------------------- studies


@require_safe
@page
def study_list(request: HttpRequest, team: Team) -> HttpResponse:
    """All studies, newest first; what is shown is in the address."""
    filters = study_filter(request.GET)
    found = selectors.studies(team, filters, cursor=request.GET.get("cursor") or None, limit=25)
    return render(
        request,
        "runs/studies.html",
        {"page": found, "filters": filters, "statuses": Status.values, "filtered": filters != study_filter({})},
    )


@require_http_methods(["GET", "HEAD", "POST"])
@page
def study_new(request: HttpRequest, team: Team) -> HttpResponse:
    """The form of a new study, or its YAML; both make the same spec and go the same way."""
    require(team, person(request), Role.SUBMITTER)
    as_yaml = (request.POST if request.method == "POST" else request.GET).get("mode") == "yaml"
    if request.method == "POST":
        return _submit_yaml(request, team) if as_yaml else _submit_form(request, team)
    initial = None
    if (origin := request.GET.get("from", "")).isdigit():
        initial = {**selectors.study(team, int(origin)).spec}
        if not expressible(initial):
            as_yaml = True
    if as_yaml:
        text = yaml_text(_brief(initial)) if initial else StudyForm().yaml()
        return _yaml_page(request, text, token=str(uuid.uuid4()))
    return _form_page(request, StudyForm(initial=initial), token=str(uuid.uuid4()))


@require_POST
@page
def study_preview(request: HttpRequest, team: Team) -> HttpResponse:
    """What the form would make now: experiments, needs, refusals, errors at their fields, the YAML."""
    if request.POST.get("mode") == "yaml":
        spec, problems = _from_text(request)
        seen = preview.of_spec(spec, problems)
        return render(request, "runs/preview_yaml.html", {"preview": seen})
    form = StudyForm(request.POST)
    seen = preview.of_form(form)
    return render(request, "runs/preview.html", {"form": form, "preview": seen})


@require_POST
@page
def study_recipes(request: HttpRequest, team: Team) -> HttpResponse:
    """The recipes of the form after one was added, removed or changed; everything that was typed is kept."""
    form = StudyForm(request.POST)
    form.edit(request.POST.get("do", ""))
    preview.of_form(form)  # what can't be done, and which values suit the model, stand at their fields
    answer = render(request, "runs/recipes.html", {"form": form})
    answer["HX-Trigger-After-Settle"] = "recipes-changed"
    return answer


def _submit_form(request: HttpRequest, team: Team) -> HttpResponse:
    form = StudyForm(request.POST)
    spec = form.study()
    if spec is not None:
        try:
            return _submit(request, team, spec)
        except Invalid as error:
            form.blame(error.fields)
            if not error.fields:
                messages.error(request, error.message)
    return _form_page(request, form, token=request.POST.get("token") or str(uuid.uuid4()), status=422)


def _submit_yaml(request: HttpRequest, team: Team) -> HttpResponse:
    spec, problems = _from_text(request)
    text = _given_text(request)
    if spec is not None:
        try:
            return _submit(request, team, spec)
        except Invalid as error:
            problems = error.fields
            if not problems:
                messages.error(request, error.message)
    token = request.POST.get("token") or str(uuid.uuid4())
    shown = text.decode("utf-8", errors="replace")[:200_000] if isinstance(text, bytes) else text
    return _yaml_page(request, shown, token=token, problems=problems, status=422)


def _submit(request: HttpRequest, team: Team, spec: StudySpec) -> HttpResponse:
    token = request.POST.get("token", "")
    study = services.study_submit(
        team=team,
        spec=spec,
        user=person(request),
        via="web",
        idempotency_key=f"web:{token}" if token else None,
    )
    return redirect("runs:study", study_id=study.pk)


def _given_text(request: HttpRequest) -> str | bytes:
    upload = request.FILES.get("file")
    if upload is not None:
        data: bytes = upload.read(1_000_001)
        return data
    return str(request.POST.get("yaml", ""))


def _from_text(request: HttpRequest) -> tuple[StudySpec | None, list[Any]]:
    text = _given_text(request)
    upload = request.FILES.get("file")
    as_json = upload is not None and str(upload.name).endswith(".json")
    try:
        return parse(text, syntax="json" if as_json else "yaml"), []
    except SpecError as error:
        return None, list(error.problems)
    finally:
        if upload is not None:
            upload.seek(0)


def _form_page(request: HttpRequest, form: StudyForm, *, token: str, status: int = 200) -> HttpResponse:
    seen = preview.of_form(form)
    return render(request, "runs/study_new.html", {"form": form, "token": token, "preview": seen}, status=status)


def _yaml_page(
    request: HttpRequest, text: str, *, token: str, problems: list[Any] | None = None, status: int = 200
) -> HttpResponse:
    context = {"text": text, "token": token, "problems": problems or []}
    return render(request, "runs/study_new_yaml.html", context, status=status)


def _brief(spec: dict[str, Any]) -> dict[str, Any]:
    """A stored spec without the fields that say nothing."""
    return {key: value for key, value in spec.items() if value not in (None, [], {}, ())}


@require_safe
@page
def study_page(request: HttpRequest, team: Team, study_id: int) -> HttpResponse:
    """Live progress while it runs, and the comparison of what has ended."""
    study = selectors.study(team, study_id)
    now = live.live(study)
    context: dict[str, Any] = {"study": study, "live": now}
    if now.ended:
        context |= compared(request, team, study_id)
    return render(request, "runs/study.html", context)


@require_safe
@page
def study_live(request: HttpRequest, team: Team, study_id: int) -> HttpResponse:
    """What changed since the page's last look; the answer carries the next question, unless there is none."""
    study = selectors.study(team, study_id)
    ended = request.GET.get("ended", "")
    now = live.live(study, live.seen(request.GET.get("after", "")), int(ended) if ended.isdigit() else -1)
    answer = render(request, "runs/study_live.html", {"study": study, "live": now})
    if now.changed:
        answer["HX-Trigger-After-Settle"] = "results-changed"
    return answer


@require_safe
@page
def study_spec(request: HttpRequest, team: Team, study_id: int) -> HttpResponse:
    """The study's spec as a file for ``steelyard submit``."""
    study = selectors.study(team, study_id)
    answer = HttpResponse(yaml_text(_brief(study.spec)), content_type="application/yaml; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="study-{study.pk}.yaml"'
    return answer


@require_POST
@page
def study_cancel(request: HttpRequest, team: Team, study_id: int) -> HttpResponse:
    """Cancel all that has not ended."""
    require(team, person(request), Role.SUBMITTER)
    services.study_cancel(team=team, study_id=study_id, actor=person(request).username)
    messages.success(request, "Cancelled: what waited is out of the queue, what ran is being stopped.")
    return redirect("runs:study", study_id=study_id)


# ----------------------------------------------------------------------------------------------------- experiments


@require_safe
@page
def experiment_page(request: HttpRequest, team: Team, experiment_id: int) -> HttpResponse:
    """One experiment: verdict, timeline, log, spec, environment, effects, all measurements."""
    experiment = selectors.experiment(team, experiment_id)
    number = request.GET.get("attempt", "")
    chosen = int(number) if number.isdigit() and len(number) < 9 else None
    log = log_pages.piece(_log_path(experiment, chosen))
    events = selectors.status_history(experiment)
    report = selectors.report_of(experiment)
    artifact = selectors.artifact_of(experiment)
    recipe = steps.steps(report) if report else ()
    return render(
        request,
        "runs/experiment.html",
        {
            "steps": recipe,
            "figures": steps.figures(recipe),
            "artifact": artifact,
            "stored_bytes": sum(artifact.files.values()) if artifact else 0,
            "experiment": experiment,
            "study": experiment.study,
            "report": report,
            "rows": measured.rows(report) if report else [],
            "sentence": measured.sentence(report) if report else "",
            "ceilings": measured.ceilings(report) if report else "",
            "attempts": selectors.attempts(experiment),
            "attempt": chosen,
            "timeline": [line for event in events if (line := history.line(event))],
            "live": live.LiveExperiment(experiment, ()),
            "over": experiment.status in TERMINAL,
            "log": log.text,
            "log_begin": log.begin,
            "log_end": log.end,
        },
    )


@require_safe
@page
def experiment_live(request: HttpRequest, team: Team, experiment_id: int) -> HttpResponse:
    """Progress, new lines of the timeline and of the log."""
    experiment = selectors.experiment(team, experiment_id)
    after, offset = (request.GET.get(name, "") for name in ("after", "offset"))
    events = selectors.events(experiment, after=int(after) if after.isdigit() else 0)
    start = int(offset) if offset.isdigit() else 0
    text, end = selectors.log_slice(experiment, start)
    shown = ("status", "cancel", "refused", "stage")
    over = experiment.status in TERMINAL and end == start
    report = selectors.report_of(experiment) if over else None
    return render(
        request,
        "runs/experiment_live.html",
        {
            "experiment": experiment,
            "live": live.LiveExperiment(experiment, ()),
            "over": over,
            "sentence": measured.sentence(report) if report else "",
            "ended": experiment.status in TERMINAL,
            "timeline": [line for e in events if e.kind in shown and (line := history.line(e))],
            "after": events[-1].seq if events else after or 0,
            "log": log_text.clean(text),
            "log_end": end,
        },
    )


@require_safe
@page
def experiment_log(request: HttpRequest, team: Team, experiment_id: int) -> HttpResponse:
    """An earlier piece of the log, or the lines that hold a text."""
    experiment = selectors.experiment(team, experiment_id)
    number = request.GET.get("attempt", "")
    chosen = int(number) if number.isdigit() and len(number) < 9 else None
    wanted = request.GET.get("q", "").strip()[:200]
    if wanted:
        hits, more = log_text.search(
            lambda offset, size: selectors.log_slice(experiment, offset, size, number=chosen), wanted
        )
        context: dict[str, Any] = {"hits": hits, "more": more, "wanted": wanted}
        return render(request, "runs/log_hits.html", context)
    before = request.GET.get("before", "")
    log = log_pages.piece(_log_path(experiment, chosen), int(before) if before.isdigit() and len(before) < 16 else None)
    context = {"experiment": experiment, "log": log.text, "log_begin": log.begin, "attempt": chosen}
    return render(request, "runs/log_earlier.html", context)


@require_safe
@page
def experiment_log_file(request: HttpRequest, team: Team, experiment_id: int) -> HttpResponseBase:
    """The whole log, as it was written."""
    experiment = selectors.experiment(team, experiment_id)
    number = request.GET.get("attempt", "")
    path = _log_path(experiment, int(number) if number.isdigit() and len(number) < 9 else None)
    if path is not None:
        name = f"experiment-{experiment.pk}.log"
        return FileResponse(path.open("rb"), as_attachment=True, filename=name, content_type="text/plain")
    raise Http404("this experiment has no log")


def _log_path(experiment: Experiment, number: int | None) -> Path | None:
    """The log of one attempt, or of the newest that has one."""
    for attempt in selectors.attempts(experiment):
        if number in (None, attempt.number) and (path := selectors.log_path(attempt)) is not None:
            return path
    return None


@require_POST
@page
def experiment_cancel(request: HttpRequest, team: Team, experiment_id: int) -> HttpResponse:
    """Cancel one experiment."""
    require(team, person(request), Role.SUBMITTER)
    experiment = services.experiment_cancel(team=team, experiment_id=experiment_id, actor=person(request).username)
    messages.success(request, f"Cancelled: {experiment.name}.")
    return _back(request, experiment)


@require_POST
@page
def experiment_retry(request: HttpRequest, team: Team, experiment_id: int) -> HttpResponse:
    """Run an ended experiment again."""
    require(team, person(request), Role.SUBMITTER)
    experiment = services.experiment_retry(team=team, experiment_id=experiment_id, actor=person(request).username)
    return _back(request, experiment)


def _back(request: HttpRequest, experiment: Experiment) -> HttpResponse:
    if request.POST.get("to") == "queue":
        return redirect("runs:queue")
    return redirect("runs:experiment", experiment_id=experiment.pk)


# ------------------------------------------------------------------------------------------------ queue, catalogue


@require_safe
@page
def queue_page(request: HttpRequest, team: Team) -> HttpResponse:
    """Workers and devices, what runs, who waits and why."""
    return render(request, "runs/queue.html", {"queue": selectors.queue_snapshot(team)})


@require_safe
@page
def queue_table(request: HttpRequest, team: Team) -> HttpResponse:
    """The queue again, for the page that follows it."""
    return render(request, "runs/queue_table.html", {"queue": selectors.queue_snapshot(team)})


@require_safe
@page
def catalog_page(request: HttpRequest, team: Team) -> HttpResponse:
    """What can be asked for, and what every metric means."""
    described = catalog.describe()
    families: dict[str, list[dict[str, Any]]] = {title: [] for title in catalog.FAMILIES.values()}
    for row in described["techniques"]:
        families[catalog.FAMILIES[row["family"]]].append(row)
    groups: dict[str, list[dict[str, Any]]] = {}
    for metric in described["metrics"]:
        groups.setdefault(metric["group"], []).append(metric)
    return render(request, "runs/catalog.html", {"catalog": described, "families": families, "metric_groups": groups})
