// One tick for everything that lives on a page: tables, chips and charts all listen to it.
// It runs while the tab is visible, Live is on and nothing is pending.
"use strict";
(() => {
  const TICK_MS = 5000, IDLE_MS = 60000, IDLE_AFTER_MS = 600000, MISSED = 3;
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  let pending = 0, lastInput = Date.now(), timer = null, keys = "";

  // --- Morphing keeps what the reader is doing: typed text, open details, open dialogs. ---
  if (window.Idiomorph) {
    Object.assign(Idiomorph.defaults, { ignoreActiveValue: true });
    Object.assign(Idiomorph.defaults.callbacks, {
      beforeNodeMorphed: (old) => !(old.nodeType === 1 && isBeingUsed(old)),
      beforeAttributeUpdated: (name, el) => name !== "tabindex" && !(name === "open" && /^(DETAILS|DIALOG)$/.test(el.tagName)),
    });
  }
  const isBeingUsed = (el) => el.matches("details.confirm[open]") || isEdited(el);
  const isEdited = (el) => /^(INPUT|TEXTAREA)$/.test(el.tagName) && el.type !== "hidden" && el.value !== el.defaultValue;

  // --- A table that scrolls sideways is reached by keyboard; one that fits is no stop. ---
  function reachable() {
    for (const wrap of $$(".table-wrap")) {
      if (wrap.scrollWidth > wrap.clientWidth) wrap.tabIndex = 0;
      else wrap.removeAttribute("tabindex");
    }
  }
  reachable();
  addEventListener("resize", reachable);
  document.addEventListener("htmx:afterSettle", reachable);

  // --- The tick ---
  const live = () => localStorage.getItem("sbx-live") !== "off";
  const interval = () => (Date.now() - lastInput > IDLE_AFTER_MS ? IDLE_MS : TICK_MS);
  function tick() {
    if (document.hidden || !live() || pending > 0) return;
    document.body.dispatchEvent(new CustomEvent("tick"));
  }
  function schedule(first) {
    clearTimeout(timer);
    timer = setTimeout(() => { tick(); schedule(); }, first ? Math.random() * TICK_MS : interval());
  }
  function showLive() {
    const button = $("#live-switch");
    if (!button) return;
    button.setAttribute("aria-pressed", String(live()));
    $(".word", button).textContent = live() ? "Live" : "Paused";
  }
  function toggleLive() {
    localStorage.setItem("sbx-live", live() ? "off" : "on");
    showLive();
    tick();
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { tick(); schedule(); } });
  for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, () => {
    const wasIdle = interval() === IDLE_MS;
    lastInput = Date.now();
    if (wasIdle) { tick(); schedule(); }
  }, { passive: true });

  // --- Fragments: tell the server what we show, note what came, say when it is old ---
  const region = (event) => event.detail.elt?.closest?.("[data-live]");
  document.addEventListener("htmx:configRequest", (event) => {
    const el = region(event);
    if (el?.dataset.digest) event.detail.headers["X-Seen"] = el.dataset.digest;
  });
  document.addEventListener("htmx:beforeRequest", () => { pending += 1; });
  document.addEventListener("htmx:afterRequest", (event) => {
    pending = Math.max(0, pending - 1);
    const el = region(event);
    if (!el) return;
    if (event.detail.xhr.status < 400 && event.detail.successful) arrived(el, event.detail.xhr.getResponseHeader("X-Digest"));
    else missed(el);
  });
  function arrived(el, digest) {
    if (digest) el.dataset.digest = digest;
    Object.assign(el.dataset, { state: "live", missed: 0, at: Date.now() });
  }
  function missed(el) {
    el.dataset.missed = Number(el.dataset.missed || 0) + 1;
    if (el.dataset.missed < MISSED) return;
    el.dataset.state = "stale";
    if (el.closest(".menu")) return;  // the page says it once
    const note = $(":scope > .stale-note", el) || el.insertAdjacentElement("afterbegin", Object.assign(document.createElement("p"), { className: "stale-note", role: "status" }));
    note.textContent = `As of ${new Date(Number(el.dataset.at || performance.timeOrigin)).toLocaleTimeString()}: the console does not answer. Trying again.`;
  }
  // A problem is shown where it was asked for, in the dialog; a live part keeps what it shows.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status >= 400 && event.detail.target.closest("[data-live]")) event.detail.shouldSwap = false;
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    ages();
    truth();
    if (event.detail.target.id === "dialog-body") openDialog();
  });

  // --- Times run on between ticks ---
  function age(seconds) {
    if (seconds < 1) return "now";
    if (seconds < 60) return `${Math.floor(seconds)} s ago`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} m ago`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
    return `${Math.floor(seconds / 86400)} d ago`;
  }
  function ages() {
    const now = Date.now();
    for (const el of $$("time[datetime]")) {
      const at = Date.parse(el.dateTime), ahead = at > now + 1500;
      const words = ahead ? `in ${age((at - now) / 1000).replace(" ago", "")}` : age((now - at) / 1000);
      if (el.textContent !== words) el.textContent = words;
      if (!el.dataset.local) { el.dataset.local = "1"; el.title = `${new Date(at).toLocaleString()} · ${el.title}`; }
    }
  }

  // --- The tab tells the truth: how many problems, in title and icon ---
  const plainTitle = document.title, icon = $("link[rel=icon]");
  function truth() {
    const badge = $("#problem-count");
    if (!badge) return;
    const n = Number(badge.dataset.count || 0);
    document.title = n ? `(${n}) ${plainTitle}` : plainTitle;
    const wanted = n ? icon.dataset.bad : icon.dataset.good;
    if (icon.getAttribute("href") !== wanted) icon.setAttribute("href", wanted);
    const words = n ? `${n} ${n === 1 ? "problem needs" : "problems need"} attention` : "";
    const speaker = $("#announcements");
    if (speaker && speaker.textContent !== words) speaker.textContent = words;
  }

  // --- Dialogs, toasts, copying ---
  const dialog = $("#dialog"), help = $("#help");
  function openDialog() {
    if (!dialog.open) dialog.showModal();
    ($("[autofocus]", dialog) || $("input, select, button", dialog))?.focus();
  }
  document.addEventListener("click", (event) => {
    const el = event.target.closest("[data-close], [data-copy], [data-dismiss], #live-switch, #help-open");
    if (!el) return closeOthers(event.target.closest("details.confirm"));
    if (el.id === "live-switch") toggleLive();
    else if (el.id === "help-open") help.showModal();
    else if (el.matches("[data-dismiss]")) el.closest(".toast").remove();
    else if (el.matches("[data-copy]")) copy(el);
    else if (el.closest("details.confirm")) el.closest("details").open = false;
    else if (el.closest("dialog")) { event.preventDefault(); el.closest("dialog").close(); }
  });
  function closeOthers(kept) {
    for (const open of $$("details.confirm[open]")) if (open !== kept) open.open = false;
  }
  async function copy(el) {
    await navigator.clipboard?.writeText($(el.dataset.copy).textContent.trim());
    el.textContent = "Copied";
  }
  document.addEventListener("submit", (event) => {
    if (event.target.matches("form[method=post]")) setTimeout(() => {
      for (const button of $$("button:not([type=button])", event.target)) button.disabled = true;
    });
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    for (const button of $$("button:disabled", event.target.closest?.("form") || document.createElement("i"))) button.disabled = false;
  });

  // --- Keys: none acts on traffic ---
  const typing = (el) => el.matches?.("input, textarea, select, [contenteditable]");
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { closeOthers(null); if ($("#search-results")) $("#search-results").replaceChildren(); if (typing(event.target)) event.target.blur(); }
    if (event.target.id === "search" && event.key === "Enter") return openFirst(event);
    if (document.body.dataset.shortcuts === "off" || typing(event.target) || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    if (keys === "g" && go(event.key)) { keys = ""; return event.preventDefault(); }
    keys = event.key === "g" ? "g" : "";
    const act = { "/": () => $("#search")?.focus(), "?": () => help.showModal(), p: toggleLive, j: () => move(1), k: () => move(-1) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  function openFirst(event) {
    const first = $("#search-results a");
    if (first) { event.preventDefault(); first.click(); }
  }
  function go(key) {
    const link = $(`.menu a[data-key="${CSS.escape(key)}"]`);
    link?.click();
    return Boolean(link);
  }
  function move(by) {
    const links = $$("main tbody tr").map((row) => $("a", row)).filter(Boolean);
    const next = links[Math.min(links.length - 1, Math.max(0, links.indexOf(document.activeElement) + by))];
    next?.focus();
  }

  const menu = $(".menu"), here = $(".menu a[aria-current]");
  if (menu && here && menu.scrollWidth > menu.clientWidth) menu.scrollLeft = here.offsetLeft - 48;

  showLive();
  ages();
  truth();
  for (const el of $$("[data-live]")) el.dataset.at = Date.now();
  setInterval(() => { if (!document.hidden) ages(); }, 1000);
  schedule(true);
})();
