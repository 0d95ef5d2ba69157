// The form of a new study: shows the fields of the chosen source, marks what the server found wrong, counts options.
const form = document.getElementById("study-form");

if (form) {
  const sources = () => {
    for (const group of form.querySelectorAll("[data-for]")) {
      const [field, value] = group.dataset.for.split("=");
      const chosen = form.elements.namedItem(field)?.value;
      const on = chosen === value;
      group.hidden = !on;
      for (const input of group.querySelectorAll("input, select, textarea")) input.disabled = !on;
    }
  };
  sources();
  form.addEventListener("change", sources);

  // Errors come with the preview; fields keep what was typed, and say so to assistive technology.
  const marks = () => {
    for (const error of form.querySelectorAll(".error[data-field]")) {
      const field = error.closest(".field");
      const input = field?.querySelector("input, select, textarea");
      if (!input) continue;
      if (error.textContent.trim()) {
        input.setAttribute("aria-invalid", "true");
        const details = error.closest("details");
        if (details && !details.open) details.open = true;
      } else input.removeAttribute("aria-invalid");
    }
  };
  // Another technique changes the recipe itself, and the preview follows the answer; it need not be asked for twice.
  document.getElementById("recipes")?.addEventListener("input", (event) => {
    if (event.target.matches("select[hx-post]")) event.stopPropagation();
  });
  // Settings that somebody opened stay open when the recipe around them changes.
  let opened = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "recipes") return;
    opened = [...event.detail.target.querySelectorAll("details[id][open]")].map((details) => details.id);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id !== "recipes") return;
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  });
  // A pair that can't be done with this model and device can't be ticked; why stands beside it.
  const refusals = () => {
    let changed = false;
    for (const why of form.querySelectorAll("[data-refusal]")) {
      const box = document.getElementById(why.dataset.refusal);
      const refused = why.textContent.trim() !== "";
      if (box.disabled === refused) continue;
      box.disabled = refused;
      changed ||= box.checked;
    }
    if (changed) form.dispatchEvent(new Event("change", { bubbles: true }));
  };
  document.addEventListener("htmx:afterSettle", () => { marks(); refusals(); });
  marks();
}

const copy = document.querySelector("[data-copy]");
copy?.addEventListener("click", async () => {
  const text = document.getElementById(copy.dataset.copy).textContent;
  await navigator.clipboard.writeText(text);
  copy.textContent = "Copied";
});
