// Replaces the live part of a page when the server sends a newer one. Without this script, reloading does the same.
"use strict";

const live = document.getElementById("live");
const connection = document.getElementById("connection");
let source = null;

// What identifies a <details> when everything around it has been replaced.
function detailsName(details) {
  const card = details.closest("[id]");
  const all = [...card.querySelectorAll("details")].filter((other) => other.closest("[id]") === card);
  return `${card.id} ${all.indexOf(details)}`;
}

// The same for what can have the focus.
function focusName(element) {
  const details = element.closest("details");
  const own = element.getAttribute("href") || element.value || element.getAttribute("aria-label");
  return `${element.tagName} ${own || (details ? detailsName(details) : "")}`;
}

// What came while a dialog was open, which is not taken away from under its reader.
let waiting = null;

// Keeps what the reader has opened, selected, scrolled to and focused.
function replace(html) {
  if (live.querySelector("dialog[open]")) {
    waiting = html;
    return;
  }
  const open = new Set([...live.querySelectorAll("details[open]")].map(detailsName));
  const checked = new Set([...live.querySelectorAll("input:checked")].map((box) => box.value));
  const focused = live.contains(document.activeElement) ? focusName(document.activeElement) : null;
  const scrolled = live.querySelector(".wide")?.scrollLeft ?? 0;
  live.innerHTML = html;
  for (const details of live.querySelectorAll("details")) details.open = open.has(detailsName(details));
  for (const box of live.querySelectorAll("input[type=checkbox]")) box.checked = checked.has(box.value);
  const region = live.querySelector(".wide");
  if (region) region.scrollLeft = scrolled;
  document.dispatchEvent(new Event("replaced"));
  if (focused !== null) {
    const candidates = [...live.querySelectorAll("a, input, button, summary, [tabindex]")];
    candidates.find((element) => focusName(element) === focused)?.focus({ preventScroll: true });
  }
}

function connect() {
  source = new EventSource(live.dataset.events + live.dataset.revision);
  source.addEventListener("update", (event) => {
    live.dataset.revision = event.lastEventId;
    replace(event.data);
  });
  source.onopen = () => { connection.textContent = "This page is kept up to date."; };
  source.onerror = () => {
    const ended = source.readyState === EventSource.CLOSED;
    connection.textContent = ended ? "No longer up to date: reload the page." : "Connection lost, trying again.";
  };
}

// A browser opens only six connections to a server: a page that nobody sees holds none.
function connectIfVisible() {
  source?.close();
  if (!document.hidden) connect();
}

// Offers to copy what can be pasted. Without this script, it is selected by hand.
function offerCopies() {
  for (const text of document.querySelectorAll("pre.paste")) {
    const button = document.createElement("button");
    const result = document.createElement("span");
    [button.type, button.value, button.textContent] = ["button", "copy", "Copy"];
    result.className = "muted";
    result.setAttribute("role", "status");
    button.addEventListener("click", () => copy(text, result));
    text.before(button, " ", result);
  }
}

async function copy(text, result) {
  try {
    await navigator.clipboard.writeText(text.textContent);
    result.textContent = "Copied.";
  } catch {
    // Without HTTPS, a browser lets pages of other machines copy nothing.
    getSelection().selectAllChildren(text);
    result.textContent = "Selected: copy it with Ctrl+C or ⌘C.";
  }
}

document.addEventListener("replaced", offerCopies);
offerCopies();

// A button that needs several jobs is enabled once these are selected. Without this script, the server says so.
function enableButtons() {
  for (const button of document.querySelectorAll("button[data-least]")) {
    button.disabled = button.form.querySelectorAll("input:checked").length < Number(button.dataset.least);
  }
}

document.addEventListener("replaced", enableButtons);
document.addEventListener("change", enableButtons);
// A page to which the browser goes back has its boxes as they were.
window.addEventListener("pageshow", enableButtons);
enableButtons();

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.dialog) document.getElementById(button.dataset.dialog)?.showModal();
  if (button?.dataset.close) document.getElementById(button.dataset.close)?.close();
});

if (live) {
  // The event does not bubble.
  live.addEventListener("close", () => {
    if (waiting !== null) replace(waiting);
    waiting = null;
  }, true);
  connectIfVisible();
  document.addEventListener("visibilitychange", connectIfVisible);
}
