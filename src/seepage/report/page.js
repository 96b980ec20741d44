// What the page does beyond text: galleries with sliders, a distribution that follows its choices, and two tables that
// filter and sort. Names from the data reach the page as text nodes and attribute values alone, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const number = (value) => (value === null ? "–" : Number(value.toPrecision(4)).toString().replace("-", "−"));
  const unique = (values) => [...new Set(values)];
  for (const hidden of $$("[data-scripted]")) hidden.hidden = false;

  // --- galleries ---------------------------------------------------------------------------------------------------

  const gallery = $("#pictures");
  if (gallery) {
    const chosen = (name) => $(`select[name=${name}]`, gallery)?.value ?? "";
    const show = () => {
      const [defence, attack, client, rank] = ["defence", "attack", "client", "rank"].map(chosen);
      for (const strip of $$("article", gallery)) {
        let any = false;
        for (const pair of $$(".pair", strip)) {
          const own = client ? pair.dataset.client === client : pair.dataset.rank !== "";
          pair.hidden = !(own && (!rank || pair.dataset.rank === rank));
          any ||= !pair.hidden;
        }
        const more = $(".more", strip);
        if (more) more.hidden = Boolean(client || rank);
        strip.hidden = !any || (defence && strip.dataset.defence !== defence) || (attack && strip.dataset.attack !== attack);
      }
      $("#none-shown").hidden = $$("article", gallery).some((strip) => !strip.hidden);
    };
    for (const select of $$("select", gallery)) select.addEventListener("change", show);
    show();

    for (const strip of $$("article[data-film]", gallery)) {
      const film = data.films[Number(strip.dataset.film)];
      const guesses = $$(".pair", strip).map((pair) => $("img.guess", pair));
      const answers = guesses.map((image) => image?.src);
      const [way, epoch] = ["way", "epoch"].map((name) => $(`input[name=${name}]`, strip));
      const put = (frame) => guesses.forEach((image, i) => { if (image) image.src = frame(i) ?? answers[i]; });
      const all = film.moments[film.moments.length - 1];
      const slideWay = () => {
        const k = Number(way.value);
        if (epoch) { epoch.value = 0; sayEpoch(); }
        put((i) => (k === film.moments.length - 1 ? undefined : film.way[i][k]));
        const words = `after ${film.moments[k]} of ${all} iterations${k < film.moments.length - 1 && film.scored ? " (dB: of the end)" : ""}`;
        way.nextElementSibling.textContent = words;
        way.setAttribute("aria-valuetext", words);
      };
      const sayEpoch = () => {
        const words = epoch.value === "0" ? "all epochs together" : `epoch ${epoch.value} of ${epoch.max} alone${film.scored ? " (dB: of all together)" : ""}`;
        epoch.nextElementSibling.textContent = words;
        epoch.setAttribute("aria-valuetext", words);
      };
      const slideEpoch = () => {
        const k = Number(epoch.value);
        way.value = film.moments.length - 1;
        slideWay.label?.();
        put((i) => (k === 0 ? undefined : film.epochs[i][k - 1]));
        sayEpoch();
      };
      slideWay.label = () => { way.nextElementSibling.textContent = `after ${all} of ${all} iterations`; };
      way?.addEventListener("input", slideWay);
      epoch?.addEventListener("input", slideEpoch);
      // Printed is what was answered.
      addEventListener("beforeprint", () => put(() => undefined));
    }
  }

  // --- rows as objects ---------------------------------------------------------------------------------------------

  const coded = Object.fromEntries(["client", "item", "metric", "outcome", "diagnosis"].map((name) => [name, data.rows[name]]));
  const rows = data.rows.value.map((value, i) => {
    const trial = data.trials[data.rows.trial[i]];
    const row = { value, trial: trial.digest, seed: trial.seed, of: trial };
    for (const name of ["case", "defence", "attack", "threat"]) row[name] = trial[name];
    for (const [name, column] of Object.entries(coded)) row[name] = column.names[column.codes[i]];
    return row;
  });

  // --- distributions -----------------------------------------------------------------------------------------------

  const spread = $("#spread");
  if (spread) {
    const [metric, within] = ["metric", "case"].map((name) => $(`select[name=${name}]`, spread));
    const baselines = unique(data.means.filter((one) => one.baseline).map((one) => one.metric));
    const isBaseline = new Set(baselines);
    const fill = (select, values) => select.append(...values.map((value) => new Option(value, value)));
    fill(metric, unique(data.means.map((one) => one.metric)).filter((name) => !isBaseline.has(name)));
    metric.value = data.measures.find((name) => [...metric.options].some((option) => option.value === name)) ?? metric.value;
    const values = new Map();  // by case and metric: every client's mean
    for (const row of rows) {
      if (row.value === null || row.attack === "(learning)") continue;
      const place = JSON.stringify([row.case, row.metric]);
      const line = JSON.stringify([row.defence, row.attack, row.threat, row.client]);
      if (!values.has(place)) values.set(place, new Map());
      const sums = values.get(place);
      const sum = sums.get(line) ?? { defence: row.defence, attack: row.attack, threat: row.threat, client: row.client, total: 0, n: 0 };
      sum.total += row.value;
      sum.n += 1;
      sums.set(line, sum);
    }
    const threats = unique(data.means.map((one) => one.threat)).length;
    const name = (one) => `${one.defence} · ${one.attack}${threats > 1 ? ` as ${one.threat}` : ""}`;
    const draw = () => {
      const means = data.means.filter((one) => one.case === within.value);
      const own = means.filter((one) => one.metric === metric.value);
      const guesses = means.filter((one) => one.baseline && one.metric.startsWith(`${metric.value}_of_`));
      const dots = [...(values.get(JSON.stringify([within.value, metric.value])) ?? new Map()).values()]
        .map((sum) => ({ ...sum, value: sum.total / sum.n }));
      const order = unique(own.map(name)).slice(0, 40);
      const shown = new Set(order);
      const inside = (list) => list.filter((one) => shown.has(name(one)));
      const unit = (data.metrics[metric.value] ?? [""])[0];
      // A label of its own below each line of dots: long names would leave no room beside them on a phone.
      const figure = Plot.plot({
        width: Math.min(1060, spread.clientWidth - 8), height: 72 + 52 * order.length, marginLeft: 20, marginRight: 20, marginBottom: 44,
        style: { background: "transparent", fontSize: "12px" },
        x: { label: unit ? `${metric.value}, ${unit}` : metric.value, labelAnchor: "center", labelArrow: "none", labelOffset: 38, grid: true, nice: true },
        y: { domain: order, axis: null },
        symbol: { domain: ["client", "mean", "guess"], range: ["circle", "diamond", "times"] },
        marks: [
          Plot.ruleY(order, { stroke: "currentColor", strokeOpacity: 0.12 }),
          Plot.dot(inside(dots), { x: "value", y: name, r: 4, fill: "var(--s1)", fillOpacity: 0.45, title: (d) => `client ${d.client}: ${number(d.value)}` }),
          Plot.tickX(inside(guesses), { x: "mean", y: name, stroke: "var(--s2)", strokeWidth: 2.5, strokeDasharray: "4 2", title: (d) => `${d.metric}: ${number(d.mean)}` }),
          Plot.text(order, { y: (d) => d, text: (d) => d, frameAnchor: "left", dy: -18, fontWeight: 600, lineWidth: Math.floor((spread.clientWidth - 40) / 8), textOverflow: "ellipsis", fill: "var(--ink)", stroke: "var(--card)", strokeWidth: 5 }),
          Plot.ruleY(inside(own).filter((d) => d.low !== null), { x1: "low", x2: "high", y: name, stroke: "var(--s0)", strokeWidth: 2 }),
          Plot.dot(inside(own), { x: "mean", y: name, symbol: "diamond", r: 6, fill: "var(--s0)", stroke: "var(--card)", title: (d) => `mean ${number(d.mean)} [${number(d.low)}, ${number(d.high)}], n = ${d.n}` }),
        ],
      });
      figure.setAttribute("role", "img");
      figure.setAttribute("aria-label", `${metric.value} of every client, by defence and attack; the numbers are in the table below`);
      $("#spread-chart").replaceChildren(figure);
      $("#spread-more").textContent = own.length > order.length ? `${own.length - order.length} further lines are in the table.` : "";
    };
    const offerCases = () => {  // those that have a number of this metric
      const kept = within.value;
      within.replaceChildren();
      fill(within, unique(data.means.filter((one) => one.metric === metric.value).map((one) => one.case)));
      if ([...within.options].some((option) => option.value === kept)) within.value = kept;
      within.parentElement.hidden = within.options.length < 2;
    };
    offerCases();
    metric.addEventListener("change", () => { offerCases(); draw(); });
    within.addEventListener("change", draw);
    let resized;
    addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(draw, 150); });
    if (data.means.length) draw();
    else spread.hidden = true;
  }

  // --- tables ------------------------------------------------------------------------------------------------------

  const text = (field, title, more = {}) => ({ field, title, formatter: "plaintext", ...more });
  const figure = (field, title, more = {}) => ({
    field, title, hozAlign: "right", headerHozAlign: "right", sorter: "number", formatter: (cell) => number(cell.getValue()), width: 88, ...more,
  });
  // Names are cut so that numbers stand on the first screen; a tooltip says the whole, as text and never as HTML.
  const names = [text("case", "Case"), text("defence", "Defence"), text("attack", "Attack"), text("threat", "Threat model"), text("metric", "Metric")].map((column) => ({ ...column, maxInitialWidth: 165, tooltip: (event, cell) => element("span", {}, String(cell.getValue())) }));
  const kinds = {
    means: {
      rows: data.means,
      columns: [...names, figure("n", "n", { width: 66 }), figure("mean", "Mean"), figure("low", "Low"), figure("high", "High"),
        text("unit", "Unit", { width: 80 }), text("seed", "Seed", { width: 72 }), text("trial", "Trial")],
    },
    values: {
      rows,
      columns: [...names, text("client", "Client", { width: 90 }), text("item", "Item", { width: 72 }), figure("value", "Value"),
        text("outcome", "Outcome"), text("diagnosis", "Diagnosis"), figure("seed", "Seed", { width: 72 }), text("trial", "Trial")],
    },
  };

  const explorer = $("#explorer");
  let drawn = Promise.resolve();
  if (explorer && rows.length) {
    const [kind, search, sort, order] = ["kind", "search", "sort", "order"].map((name) => $(`[name=${name}]`, explorer));
    const selects = ["case", "defence", "attack", "threat", "metric"].map((name) => $(`select[name=${name}]`, explorer));
    const fields = ["case", "defence", "attack", "threat", "metric", "client", "outcome", "diagnosis", "trial"];
    let table, ready = Promise.resolve();
    const matches = (row) => {
      for (const select of selects) if (select.value && row[select.name] !== select.value) return false;
      const sought = search.value.toLowerCase();
      return !sought || fields.some((field) => String(row[field] ?? "").toLowerCase().includes(sought));
    };
    const count = () => { $("#shown").textContent = `${table.getDataCount("active")} of ${kinds[kind.value].rows.length} rows`; };
    const filter = () => ready.then(() => { table.setFilter(matches); count(); });
    const arrange = () => ready.then(() => table.setSort(sort.value, order.getAttribute("aria-pressed") === "true" ? "desc" : "asc"));
    const build = () => {
      table?.destroy();
      const { rows, columns } = kinds[kind.value];
      for (const select of selects) {
        const kept = select.value, values = unique(rows.map((row) => row[select.name])).sort();
        select.replaceChildren(new Option("all", ""), ...values.map((value) => new Option(value, value)));
        select.value = values.includes(kept) ? kept : "";
        select.parentElement.hidden = values.length < 2;
      }
      sort.replaceChildren(...columns.map((column) => new Option(column.title, column.field)));
      table = new Tabulator("#table", {
        data: rows, columns, height: "26rem", layout: "fitDataFill", renderVertical: "virtual",
        autoResize: false,  // else the table is drawn again when it scrolls into view, and a focused row loses the focus
        placeholder: "No row is like that.",
        columnDefaults: { headerTooltip: true, minWidth: 60, maxInitialWidth: 240, resizable: "header" },
        rowFormatter: (row) => { row.getElement().tabIndex = 0; row.getElement().setAttribute("aria-label", "Enter shows where this number comes from"); },
      });
      ready = new Promise((built) => table.on("tableBuilt", built));
      table.on("rowClick", (event, row) => explain(row.getData()));
      table.on("dataSorted", (sorters) => {
        if (!sorters.length) return;
        sort.value = sorters[0].field;
        order.setAttribute("aria-pressed", sorters[0].dir === "desc");
      });
      table.on("dataFiltered", (filters, found) => { $("#shown").textContent = `${found.length} of ${rows.length} rows`; });
      return filter();
    };
    $("#table").addEventListener("keydown", (event) => {
      const at = event.target.closest(".tabulator-row");
      if (!at) return;
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      if (step) { at[step]?.focus(); event.preventDefault(); }
      if (event.key === "Enter") explain(table.getRow(at).getData());
    });

    const explain = (row) => {
      const trials = row.of ? [row.of] : unique(rows.filter((one) => one.metric === row.metric && ["case", "defence", "attack", "threat"].every((name) => one[name] === row[name])).map((one) => one.of));
      const list = element("dl", { class: "pairs" });
      const say = (head, ...words) => list.append(element("dt", {}, head), element("dd", {}, ...words));
      say("Number", row.of
        ? `${row.metric} = ${row.value ?? "no number"}, client ${row.client}, item ${row.item}`
        : `${row.metric}: mean ${number(row.mean)} over n = ${row.n} ${row.per}; 95 % interval [${number(row.low)}, ${number(row.high)}] by ${data.interval}`);
      const about = data.metrics[row.metric];
      if (about) say("Metric", about[1]);
      if (row.outcome) say("Outcome", row.outcome + (row.diagnosis ? `; diagnosis: ${row.diagnosis}` : ""));
      for (const trial of trials.slice(0, 5)) {
        say("Trial", element("code", {}, trial.digest), ` · seed ${trial.seed} · ${trial.device} · Seepage ${trial.seepage} · PyTorch ${trial.torch}${trial.seconds ? ` · ${trial.seconds} s` : ""}`);
        say("Who attacks", trial.threat === "none" ? "nobody: accuracy of the shared model" : `${trial.attack} as ${trial.threat}${trial.attackSettings ? ` (${trial.attackSettings})` : ""}`);
        say("Whom", `${trial.data}, ${trial.model}, ${trial.defence}`);
        const settings = trial.settings ? JSON.stringify(trial.settings, null, 1) : `see notes/${trial.digest}.json`;
        say("Every setting", element("details", {}, element("summary", {}, "of this trial"), element("pre", {}, settings)));
      }
      if (trials.length > 5) say("Trials", `and ${trials.length - 5} more`);
      const again = document.body.dataset.rerun;
      if (again) say("Again", element("code", {}, again));
      const box = $("#explained");
      box.replaceChildren(element("h3", {}, `${row.case}: ${row.defence}, ${row.attack}`), list);
      box.hidden = false;
      box.focus();
    };
    kind.addEventListener("change", build);
    for (const select of selects) select.addEventListener("change", filter);
    let typed;
    search.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(filter, 120); });
    sort.addEventListener("change", arrange);
    order.addEventListener("click", () => {
      order.setAttribute("aria-pressed", order.getAttribute("aria-pressed") !== "true");
      arrange();
    });
    let width = innerWidth, redrawn;
    addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      clearTimeout(redrawn);
      redrawn = setTimeout(() => table.redraw(true), 150);
    });
    if (!data.means.length) kind.value = "values";
    drawn = build();
    if (data.rowsLeftOut) $("#left-out").textContent = `${data.rowsLeftOut} rows are in the folder's rows/ alone, to keep this file small.`;
  } else if (explorer) explorer.hidden = true;
  drawn.then(() => { document.documentElement.dataset.ready = ""; });
})();
