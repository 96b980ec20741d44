// Watches a run: asks how far it is while it runs.
"use strict";
(() => {
  const progress = document.getElementById("progress");
  if (!progress) return;
  const put = (id, words) => { document.getElementById(id).textContent = words; };
  const log = document.getElementById("log");
  const ask = async () => {
    try {
      const answer = await fetch(`${document.body.dataset.base}/run/${progress.dataset.run}/state`);
      return answer.ok ? await answer.json() : null;
    } catch {
      return null;  // the page is being left, or the server is away for a moment
    }
  };
  const look = async () => {
    const now = await ask();
    if (!now) { setTimeout(look, 5000); return; }
    const badge = document.getElementById("state");
    badge.textContent = now.state;
    badge.className = `badge ${now.state}`;
    put("count", now.total ? `${now.done} of ${now.total} trials` : "reading the specification");
    put("verdict", now.verdict);
    const bar = document.getElementById("bar");
    bar.max = now.total || 1;
    bar.value = now.done;
    document.getElementById("report").hidden = !now.done;
    document.getElementById("stop").hidden = now.state !== "running";
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    if (log.textContent !== now.log) log.textContent = now.log;
    document.getElementById("said").hidden = !now.log && now.state !== "running";
    if (atEnd) log.scrollTop = log.scrollHeight;
    progress.dataset.state = now.state;
    if (now.state === "running" || now.state === "unfinished") setTimeout(look, now.state === "running" ? 1000 : 5000);
  };
  look();
})();
