// Swagger UI is dark by a class of its own: set it from the reader's theme, or the system's.
"use strict";
(() => {
  const theme = document.querySelector("meta[name=theme]").content;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const show = () => document.documentElement.classList.toggle("dark-mode", theme === "dark" || (theme === "system" && system.matches));
  system.addEventListener("change", show);
  show();
})();
