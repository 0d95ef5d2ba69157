// Runs before the first paint, so that a page never flashes in the other theme. System, light, dark, in turn.
(function () {
  const root = document.documentElement;
  const read = () => {
    try { return localStorage.getItem("steelyard-theme") || "system"; } catch { return "system"; }
  };
  const apply = (theme) => {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
  };
  apply(read());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (!button) return;
    const order = ["system", "light", "dark"];
    const show = (theme) => {
      button.textContent = { system: "\u25d0 System", light: "\u25cb Light", dark: "\u25cf Dark" }[theme];
      button.setAttribute("aria-label", `Theme: ${theme}. Change it`);
    };
    button.hidden = false;
    show(read());
    button.addEventListener("click", () => {
      const next = order[(order.indexOf(read()) + 1) % order.length];
      try { localStorage.setItem("steelyard-theme", next); } catch { /* private mode: this page only */ }
      apply(next);
      show(next);
      document.dispatchEvent(new CustomEvent("steelyard:theme"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      document.dispatchEvent(new CustomEvent("steelyard:theme"));
    });
  });
})();
