// Sends an upload with its progress; without this script the form is an ordinary one.
"use strict";
(() => {
  const form = document.querySelector("form[data-upload]");
  if (!form || !window.FormData) return;
  const button = form.querySelector("button"), result = document.getElementById("upload-result");
  const area = form.querySelector("[data-progress]"), bar = area.querySelector("progress");
  const text = area.querySelector("[data-progress-text]");
  const mib = (bytes) => `${(bytes / 1048576).toFixed(1)} MiB`;

  function busy(is) {
    button.disabled = is;
    area.hidden = !is;
  }
  function refusal(request) {  // what was refused before a page could be made is told as JSON
    if (!/json/.test(request.getResponseHeader("Content-Type"))) return "";
    try { return JSON.parse(request.responseText).error.message; } catch { return ""; }
  }
  function say(words) {
    const box = Object.assign(document.createElement("div"), { className: "problem-box", textContent: words });
    box.setAttribute("role", "alert");
    result.replaceChildren(box);
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const request = new XMLHttpRequest();
    request.open("POST", form.action);
    request.setRequestHeader("HX-Request", "true");  // asks for a part instead of a page
    request.upload.addEventListener("progress", (sent) => {
      if (!sent.lengthComputable) return;
      bar.max = sent.total;
      bar.value = sent.loaded;
      text.textContent = sent.loaded < sent.total ? `${mib(sent.loaded)} of ${mib(sent.total)}` : "Checking …";
    });
    request.addEventListener("load", () => {
      const address = request.getResponseHeader("HX-Redirect");
      if (address) return void window.location.assign(address);
      busy(false);
      const told = refusal(request);
      if (told) return say(told);
      if ((request.status >= 500 && request.status !== 503 && request.status !== 507) || !request.responseText) return say("Signalbox failed at this. Nothing was kept; try again.");
      result.innerHTML = request.responseText;  // rendered and escaped by our own server
      result.scrollIntoView({ block: "nearest" });
    });
    request.addEventListener("error", () => { busy(false); say("The connection broke. Nothing was kept; try again."); });
    result.replaceChildren();
    bar.value = 0;
    busy(true);
    request.send(new FormData(form));
  });
})();
