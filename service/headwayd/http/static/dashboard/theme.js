// Light, dark, or as the system has it; remembered for this browser.

import { say, set } from "./dom.js";

const KEY = "headway-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

export function followTheme(button) {
  let theme = localStorage.getItem(KEY);
  if (!(theme in NEXT)) theme = "system";
  const show = () => {
    set(document.documentElement, "data-theme", theme);
    say(button, `Theme: ${theme}`);
  };
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    localStorage.setItem(KEY, theme);
    show();
  });
  show();
}
