// What every page does: local times, questions before an end, one submission per click, word when the server is away.
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([data-done])")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    time.title = time.textContent;
    time.textContent = (time.dataset.form === "clock" ? clock : moment).format(at);
    time.dataset.done = "";
  }
}

localise(document);
document.addEventListener("htmx:load", (event) => localise(event.detail.elt.parentNode ?? document));

// A form with data-confirm asks first, in a dialog that the keyboard reaches.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.sent === "yes") {
    event.preventDefault();
    return;
  }
  const question = form.dataset.confirm;
  if (question && form.dataset.asked !== "yes") {
    event.preventDefault();
    const dialog = document.getElementById("confirm");
    dialog.querySelector("p").textContent = question;
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => {
      if (dialog.returnValue !== "yes") return;
      form.dataset.asked = "yes";
      form.requestSubmit(event.submitter ?? undefined);
    }, { once: true });
    dialog.showModal();
    return;
  }
  if (form.method === "post" && !form.hasAttribute("hx-post")) {
    form.dataset.sent = "yes";
    for (const button of form.querySelectorAll("button[type=submit], button:not([type])")) button.setAttribute("aria-disabled", "true");
  }
});
addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    for (const button of form.querySelectorAll("[aria-disabled]")) button.removeAttribute("aria-disabled");
  }
});

// A choice that needs no button where there is a script.
for (const button of document.querySelectorAll("[data-hide]")) button.hidden = true;
document.addEventListener("htmx:load", (event) => {
  for (const button of event.detail.elt.querySelectorAll?.("[data-hide]") ?? []) button.hidden = true;
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});

// A part that refreshes by itself stays still while somebody uses it: focus, a selection or an open question in it.
document.addEventListener("htmx:beforeRequest", (event) => {
  const part = event.detail.elt;
  if (!part.matches("[data-still]")) return;
  const selection = document.getSelection();
  const selecting = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  if (selecting || part.contains(document.activeElement) || document.querySelector("dialog[open]")) event.preventDefault();
});

const offline = document.getElementById("offline");
document.addEventListener("htmx:sendError", () => { offline.hidden = false; });
document.addEventListener("htmx:responseError", () => { offline.hidden = false; });
document.addEventListener("htmx:afterOnLoad", () => { offline.hidden = true; });
