// Headings that skip a level, controls without a name, ids given twice, labels and descriptions that point nowhere.
() => {
  const found = [];
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    if (!heading.checkVisibility()) continue;
    const now = Number(heading.tagName[1]);
    if (now > level + 1) found.push(`heading skips to ${heading.tagName}: ${heading.textContent}`);
    level = now;
  }
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  if (document.querySelectorAll("main").length !== 1) found.push("not one main");
  for (const control of document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea, summary, progress, [role=img]")) {
    if (!control.checkVisibility()) continue;
    const name = control.getAttribute("aria-label") || control.labels?.[0]?.textContent || control.textContent || control.title;
    if (!name?.trim()) found.push(`no name: ${control.outerHTML.slice(0, 120)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids.filter((id, at) => ids.indexOf(id) !== at)) found.push(`id twice: ${id}`);
  for (const element of document.querySelectorAll("[aria-describedby], [aria-labelledby], label[for]")) {
    for (const name of ["aria-describedby", "aria-labelledby", "for"]) {
      for (const id of (element.getAttribute(name) ?? "").split(" ").filter(Boolean)) {
        if (!document.getElementById(id)) found.push(`${name} points nowhere: ${id}`);
      }
    }
  }
  return found;
}
