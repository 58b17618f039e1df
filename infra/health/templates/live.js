"use strict";
// Airflow keeps its theme in this place; without one, or with "system", the machine's theme counts.
const followTheme = () => {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
};
followTheme();
addEventListener("storage", followTheme);
// What a person has opened or chosen stays so.
const chosen = (main) => [...main.querySelectorAll("input, details")];
setInterval(async () => {
  if (document.hidden) return;
  const main = document.querySelector("main");
  let fresh = null;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (answer.ok) {
      const text = await answer.text();
      fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    }
  } catch { /* said below */ }
  main.classList.toggle("unanswered", fresh === null);
  if (fresh === null) return;
  const before = chosen(main);
  chosen(fresh).forEach((each, index) => {
    if (index >= before.length) return;
    if (each.tagName === "INPUT") each.checked = before[index].checked;
    else each.open = before[index].open;
  });
  main.replaceWith(document.adoptNode(fresh));
}, 10000);
