// A study or an experiment that still runs. The server's answer to each poll only adds log lines and swaps small
// pieces that nobody can open or type into; the comparison below is refreshed only while nobody has touched it.
const results = document.getElementById("results");

if (results) {
  let touched = false;
  const touch = () => { touched = true; };
  results.addEventListener("pointerdown", touch);
  results.addEventListener("keydown", touch);
  results.addEventListener("input", touch);
  const inUse = () => {
    const selection = document.getSelection();
    const selecting = selection && !selection.isCollapsed && results.contains(selection.anchorNode);
    return touched || selecting || results.contains(document.activeElement);
  };
  results.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt !== results || event.detail.requestConfig.triggeringEvent?.type !== "results-changed") return;
    if (!inUse()) return;
    event.preventDefault();
    document.getElementById("fresh").hidden = false;
  });
  results.addEventListener("htmx:afterSwap", () => {
    touched = false;
    document.getElementById("fresh").hidden = true;
  });
  document.querySelector("#fresh button")?.addEventListener("click", () => {
    touched = false;
    document.activeElement?.blur();
    window.htmx.trigger(results, "results-now");
  });
}

// A log that is being followed stays at its end; one that was scrolled up stays where it is.
const following = new WeakMap();
document.addEventListener("htmx:oobBeforeSwap", (event) => {
  const log = event.detail.target;
  if (log?.matches?.(".log")) following.set(log, log.scrollHeight - log.scrollTop - log.clientHeight < 24);
});
document.addEventListener("htmx:oobAfterSwap", (event) => {
  const log = event.detail.target;
  if (!log?.matches?.(".log")) return;
  const limit = Number(log.dataset.lines || 400);
  const selecting = document.getSelection();
  const busy = selecting && !selecting.isCollapsed && log.contains(selecting.anchorNode);
  const long = () => log.childNodes.length > limit || log.textContent.length > 400_000; // the whole log is a download
  while (!busy && log.childNodes.length > 1 && long()) log.firstChild.remove();
  if (following.get(log)) log.scrollTop = log.scrollHeight;
});
document.addEventListener("toggle", (event) => {
  const log = event.target.open && event.target.querySelector?.(".log");
  if (log) log.scrollTop = log.scrollHeight;
}, true);
