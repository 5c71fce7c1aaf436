// Light, dark or as in the system; charts are redrawn when it changes.
"use strict";
const theme = (() => {
  const names = { system: "System", light: "Light", dark: "Dark" };
  const listeners = [];
  // stored for the other pages of a gallery; a browser may not allow storage
  const kept = (value) => {
    try {
      if (value) localStorage.setItem("elliptica-colours", value);
      return localStorage.getItem("elliptica-colours");
    } catch {
      return null;
    }
  };
  let chosen = kept() in names ? kept() : "system", onPaper = false;
  const button = document.getElementById("theme");
  const root = document.documentElement;

  function apply() {
    const now = onPaper ? "light" : chosen;  // paper is white whatever the screen was
    if (now === "system") delete root.dataset.theme;
    else root.dataset.theme = now;
    button.querySelector("[data-theme-name]").textContent = names[chosen];
    button.setAttribute("aria-label", `Colours: ${chosen === "system" ? "as the system" : names[chosen]}. Change`);
    for (const listen of listeners) listen();
  }

  button.addEventListener("click", () => {
    const order = Object.keys(names);
    chosen = order[(order.indexOf(chosen) + 1) % order.length];
    kept(chosen);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();

  return {
    onChange: (listen) => listeners.push(listen),
    forPaper(isPaper) {
      onPaper = isPaper;
      apply();
    },
    colour: (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim(),
  };
})();
